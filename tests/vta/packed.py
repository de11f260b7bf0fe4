"""Shared by tests of packed convolutions: inputs, feasible knobs, and the check of a program."""

from __future__ import annotations

import itertools
import random

import numpy as np

from tvmtune_vta.codegen.convolution import BIAS, W, X, Y, generate, is_feasible
from tvmtune_vta.codegen.knobs import InfeasibleKnobs, Knobs, points
from tvmtune_vta.codegen.workload import Convolution, Epilogue, numpy_reference
from tvmtune_vta.hardware import rules
from tvmtune_vta.hardware.config import Config
from tvmtune_vta.simulator import reference


def arrays(
    conv: Convolution, epilogue: Epilogue, on: Config, seed: int = 0
) -> tuple[dict[int, np.ndarray], np.ndarray]:
    """Arrays for a program, and its expected output."""
    rng = np.random.default_rng(seed)
    x, w, _ = conv.shapes(on)
    memory = {X: rng.integers(-128, 128, x, np.int8), W: rng.integers(-128, 128, w, np.int8)}
    if epilogue.bias:
        shape = (conv.out_channels // on.block, on.batch, on.block)
        memory[BIAS] = rng.integers(-(1 << 16), 1 << 16, shape, np.int32)
    return memory, numpy_reference(conv, epilogue, memory[X], memory[W], memory.get(BIAS))


def feasible_knobs(conv: Convolution, on: Config, count: int, seed: int = 0) -> list[Knobs]:
    """``count`` random feasible knobs."""
    known = list(points(conv, on))
    random.Random(seed).shuffle(known)
    roomy = (knobs for knobs in known if is_feasible(conv, Epilogue(True), knobs, on))
    return list(itertools.islice(roomy, count))


def random_knobs_are_correct(
    conv: Convolution, epilogue: Epilogue, on: Config, rng: random.Random, *, orders: bool
) -> bool:
    """:func:`assert_correct` for random knobs; False if they are infeasible."""
    knobs = rng.choice(list(points(conv, on)))
    try:
        generate(conv, epilogue, knobs, on)
    except InfeasibleKnobs:
        return False
    assert_correct(conv, epilogue, knobs, on, orders=orders)
    return True


def assert_correct(
    conv: Convolution, epilogue: Epilogue, knobs: Knobs, on: Config, *, orders: bool = True
) -> None:
    program = generate(conv, epilogue, knobs, on)
    rules.check(program)
    memory, want = arrays(conv, epilogue, on)
    run = reference.run_all_orders if orders else reference.run
    assert np.array_equal(run(program, memory).memory[Y], want), (conv, knobs)
