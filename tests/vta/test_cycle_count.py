"""The compiled cycle count agrees with the time model, to the cycle."""

from __future__ import annotations

import random

import pytest

from tvmtune.errors import TvmtuneError
from tvmtune_vta.codegen.convolution import generate, instruction_segments
from tvmtune_vta.codegen.knobs import InfeasibleKnobs, Knobs, points
from tvmtune_vta.codegen.workload import Convolution, Epilogue
from tvmtune_vta.hardware import isa
from tvmtune_vta.hardware.config import Config
from tvmtune_vta.hardware.isa import Engine
from tvmtune_vta.timing import cycle_count, time_model
from tvmtune_vta.timing.time_model import TimingConstants
from vta import small
from vta.packed import feasible_knobs
from vta.test_convolution import RESNET_18


@pytest.mark.sweep
@pytest.mark.parametrize("conv", list(RESNET_18)[1::4], ids=str)
def test_segments_take_the_cycles_of_the_whole_program(conv):
    on, epilogue = Config(), Epilogue(True)
    for knobs in feasible_knobs(conv, on, 3, seed=7):
        wanted = time_model.program_timeline(generate(conv, epilogue, knobs, on)).cycles
        assert (
            cycle_count.count_cycles(instruction_segments(conv, epilogue, knobs, on), on) == wanted
        ), knobs


def test_it_agrees_with_the_model_for_all_kinds_of_convolutions():
    """Groups, batches, transposed convolutions, cropped outputs and paddings, two biases."""
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
        except InfeasibleKnobs:
            continue
        wanted = time_model.program_timeline(program).cycles
        assert (
            cycle_count.count_cycles(instruction_segments(conv, epilogue, knobs, on), on) == wanted
        ), (
            conv,
            knobs,
        )
        done += 1


def test_it_accepts_any_instructions_and_constants():
    program = small.program()
    instructions = program.decode()
    for constants in (None, TimingConstants(50, 3, 5, 2, 4, 100, 1, 2.0)):
        counted = cycle_count.count_cycles(
            [instructions[:4], instructions[4:]], program.config, constants
        )
        assert counted == time_model.program_timeline(program, constants).cycles


def test_equal_segments_are_shared():
    conv, knobs = Convolution(1, 56, 56, 64, 64, 3, 3, 1, 1), Knobs(1, 7, 14, 1, 2, 2, 1)
    parts = instruction_segments(conv, Epilogue(True), knobs, Config())
    assert len(parts) == 2 + 2 * 8 * 4 // 2
    assert len({id(part) for part in parts}) < len(parts)


def test_missing_tokens_are_reported():
    waiting = [isa.noop(Engine.LOAD, pop_next=True)]
    with pytest.raises(TvmtuneError, match="deadlocks"):
        cycle_count.count_cycles([waiting], Config())
