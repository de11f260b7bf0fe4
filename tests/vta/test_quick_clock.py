"""The quick clock counts what the time model counts, to the cycle."""

from __future__ import annotations

import random

import pytest

from tvmtune.errors import TvmtuneError
from tvmtune_vta import clock, isa, quick_clock
from tvmtune_vta.clock import Constants
from tvmtune_vta.config import Config
from tvmtune_vta.convolution import generate, outline
from tvmtune_vta.isa import Engine
from tvmtune_vta.knobs import Knobs, Misfit, points
from tvmtune_vta.workload import Convolution, Epilogue
from vta import small
from vta.packed import valid
from vta.test_convolution import RESNET_18


@pytest.mark.parametrize("conv", list(RESNET_18)[1::4], ids=str)
def test_of_a_layers_outline_it_says_what_the_model_says_of_its_program(conv):
    on, epilogue = Config(), Epilogue(True)
    for knobs in valid(conv, on, 3, seed=7):
        wanted = clock.model(generate(conv, epilogue, knobs, on)).cycles
        assert quick_clock.cycles(outline(conv, epilogue, knobs, on), on) == wanted, knobs


def test_it_agrees_for_all_kinds_of_convolutions():
    """Groups, batches, transposed ones, outputs and paddings that tiles are cut by, two biases."""
    rng = random.Random(0)
    on, done = Config(), 0
    while done < 25:
        groups, kernel, up = rng.choice([1, 2]), rng.choice([1, 2, 3, 5]), rng.choice([1, 1, 2, 3])
        conv = Convolution(
            *(rng.choice([1, 2]), rng.randint(5, 11), rng.randint(5, 11)),
            *(16 * groups * rng.randint(1, 3) for _ in range(2)),
            *(kernel, kernel, rng.randint(0, kernel // 2), rng.randint(0, kernel // 2)),
            *((1, 1) if up > 1 else (rng.choice([1, 2]),) * 2),
            groups=groups,
            end_h=rng.choice([0, 1]),
            up_h=up,
            up_w=up,
        )
        epilogue = Epilogue(rng.random() < 0.5, rng.choice([0, 8, 20]))
        knobs = rng.choice(list(points(conv, on)))
        try:
            program = generate(conv, epilogue, knobs, on)
        except Misfit:
            continue
        wanted = clock.model(program).cycles
        assert quick_clock.cycles(outline(conv, epilogue, knobs, on), on) == wanted, (conv, knobs)
        done += 1


def test_any_instructions_and_constants_will_do():
    program = small.program()
    instructions = program.decode()
    for constants in (None, Constants(50, 3, 5, 2, 4, 100, 1, 2.0)):
        found = quick_clock.cycles([instructions[:4], instructions[4:]], program.config, constants)
        assert found == clock.model(program, constants).cycles


def test_parts_that_are_alike_are_made_once():
    conv, knobs = Convolution(1, 56, 56, 64, 64, 3, 3, 1, 1), Knobs(1, 7, 14, 1, 2, 2, 1)
    parts = outline(conv, Epilogue(True), knobs, Config())
    assert len(parts) == 2 + 2 * 8 * 4 // 2
    assert len({id(part) for part in parts}) < len(parts)


def test_tokens_that_are_missing_are_said():
    waiting = [isa.noop(Engine.LOAD, pop_next=True)]
    with pytest.raises(TvmtuneError, match="does not come to its end"):
        quick_clock.cycles([waiting], Config())
