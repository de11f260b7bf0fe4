"""Packed convolutions for tests: memory for them, knobs that fit, and what makes a stream right."""

from __future__ import annotations

import itertools
import random

import numpy as np

from tvmtune_vta import rules, simulator
from tvmtune_vta.config import Config
from tvmtune_vta.convolution import BIAS, W, X, Y, fits, generate
from tvmtune_vta.knobs import Knobs, Misfit, points
from tvmtune_vta.workload import Convolution, Epilogue, reference


def arrays(
    conv: Convolution, epilogue: Epilogue, on: Config, seed: int = 0
) -> tuple[dict[int, np.ndarray], np.ndarray]:
    """Memory for a program, and what has to be its output."""
    rng = np.random.default_rng(seed)
    x, w, _ = conv.shapes(on)
    memory = {X: rng.integers(-128, 128, x, np.int8), W: rng.integers(-128, 128, w, np.int8)}
    if epilogue.bias:
        shape = (conv.out_channels // on.block, on.batch, on.block)
        memory[BIAS] = rng.integers(-(1 << 16), 1 << 16, shape, np.int32)
    return memory, reference(conv, epilogue, memory[X], memory[W], memory.get(BIAS))


def valid(conv: Convolution, on: Config, count: int, seed: int = 0) -> list[Knobs]:
    """So many random knobs for which there is room."""
    known = list(points(conv, on))
    random.Random(seed).shuffle(known)
    roomy = (knobs for knobs in known if fits(conv, Epilogue(True), knobs, on))
    return list(itertools.islice(roomy, count))


def drawn_right(
    conv: Convolution, epilogue: Epilogue, on: Config, rng: random.Random, *, orders: bool
) -> bool:
    """:func:`assert_right` for random knobs; False where there is no room for these."""
    knobs = rng.choice(list(points(conv, on)))
    try:
        generate(conv, epilogue, knobs, on)
    except Misfit:
        return False
    assert_right(conv, epilogue, knobs, on, orders=orders)
    return True


def assert_right(
    conv: Convolution, epilogue: Epilogue, knobs: Knobs, on: Config, *, orders: bool = True
) -> None:
    program = generate(conv, epilogue, knobs, on)
    rules.check(program)
    memory, want = arrays(conv, epilogue, on)
    run = simulator.run_all_orders if orders else simulator.run
    assert np.array_equal(run(program, memory).memory[Y], want), (conv, knobs)
