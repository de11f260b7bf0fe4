"""Programs of convolutions obey the rules and are bit-exact in any order of the engines."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tvmtune.errors import TvmtuneError
from tvmtune_vta.codegen.convolution import BIAS, W, X, Y, generate
from tvmtune_vta.codegen.knobs import InfeasibleKnobs, Knobs, points
from tvmtune_vta.codegen.workload import Convolution, Epilogue
from tvmtune_vta.hardware import isa, rules
from tvmtune_vta.hardware.config import Config
from tvmtune_vta.simulator import fast, reference
from vta.packed import arrays, assert_correct, feasible_knobs, random_knobs_are_correct

RESNET_18 = {
    Convolution(1, 56, 56, 64, 64, 3, 3, 1, 1, 1, 1): 4,
    Convolution(1, 56, 56, 64, 128, 3, 3, 1, 1, 2, 2): 1,
    Convolution(1, 56, 56, 64, 128, 1, 1, 0, 0, 2, 2): 1,
    Convolution(1, 28, 28, 128, 128, 3, 3, 1, 1, 1, 1): 3,
    Convolution(1, 28, 28, 128, 256, 3, 3, 1, 1, 2, 2): 1,
    Convolution(1, 28, 28, 128, 256, 1, 1, 0, 0, 2, 2): 1,
    Convolution(1, 14, 14, 256, 256, 3, 3, 1, 1, 1, 1): 3,
    Convolution(1, 14, 14, 256, 512, 3, 3, 1, 1, 2, 2): 1,
    Convolution(1, 14, 14, 256, 512, 1, 1, 0, 0, 2, 2): 1,
    Convolution(1, 7, 7, 512, 512, 3, 3, 1, 1, 1, 1): 3,
}
"""The tutorial's ten, and how often each occurs; the first convolution runs on the CPU."""
OTHERS = {"two rows": {"LOG_BATCH": 1}, "32 columns": {"LOG_BLOCK": 5, "LOG_WGT_BUFF_SIZE": 20}}


def config(**changed: int) -> Config:
    return Config.parse(Config.named("sim").as_dict() | changed, "test")


def test_the_reference_is_a_convolution():
    """Compared with the definition, value by value."""
    conv = Convolution(1, 5, 6, 16, 16, 3, 2, 1, 0, 2, 1)
    memory, got = arrays(conv, Epilogue(True, 9, -100, 90), Config())
    x, w, bias = memory[X], memory[W], memory[BIAS]
    for oh, ow, k in [(0, 0, 0), (1, 3, 7), (2, 4, 15)]:
        total = int(bias[0, 0, k])
        for ky in range(3):
            for kx in range(2):
                row, column = oh * 2 + ky - 1, ow + kx
                if 0 <= row < 5 and 0 <= column < 6:
                    pixel = x[0, 0, row, column, 0].astype(int)
                    total += int(pixel @ w[0, 0, ky, kx, k].astype(int))
        assert got[0, 0, oh, ow, 0, k] == max(-100, min(90, total >> 9))


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(12))
def test_any_shape_is_bit_exact(seed):
    """Strides, paddings, kernels of 1 to 7, channels, groups, batches, epilogues, knobs."""
    rng = random.Random(seed)
    on, done = Config(), 0
    while done < 5:
        k, stride = rng.choice([1, 1, 2, 3, 3, 5, 7]), rng.choice([1, 1, 2, 3])
        pad, groups = rng.randint(0, k // 2), rng.choice([1, 1, 1, 2, 4])
        ins, outs = (16 * groups * rng.randint(1, 4) for _ in range(2))
        size = [rng.randint(k, 18) for _ in range(2)]
        conv = Convolution(
            rng.choice([1, 1, 2]), *size, ins, outs, k, k, pad, pad, stride, stride, groups
        )
        low, high = rng.choice([(0, 127), (None, 127), (-128, None), (None, None)])
        epilogue = Epilogue(rng.random() < 0.5, rng.choice([0, 5, 8, 17, 30]), low, high)
        done += random_knobs_are_correct(conv, epilogue, on, rng, orders=done == 0)


@pytest.mark.parametrize("conv", RESNET_18, ids=str)
@pytest.mark.slow
def test_layers_of_resnet_18_are_bit_exact(conv):
    on = Config()
    for knobs in feasible_knobs(conv, on, 2):
        assert_correct(conv, Epilogue(True), knobs, on, orders=False)


@pytest.mark.parametrize(
    "count", [pytest.param(6, marks=pytest.mark.slow), pytest.param(50, marks=pytest.mark.soak)]
)
@pytest.mark.parametrize(
    "conv",
    # The default settings of all layers are tested above.
    [
        pytest.param(conv, marks=pytest.mark.soak if number % 2 else ())
        for number, conv in enumerate(RESNET_18)
    ],
    ids=str,
)
def test_knob_settings_are_bit_exact(conv, count):
    on, epilogue = Config(), Epilogue(True)
    memory, want = arrays(conv, epilogue, on)
    settings = feasible_knobs(conv, on, count, seed=1)
    assert len(settings) == count
    for number, knobs in enumerate(settings):
        # checking the rules takes most of the time, and these programs are similar
        machine = fast.FastSimulator(generate(conv, epilogue, knobs, on), checked=number % 10 > 0)
        assert np.array_equal(machine.run(memory)[Y], want), knobs


@pytest.mark.parametrize("changed", OTHERS.values(), ids=OTHERS)
@pytest.mark.slow
def test_other_configurations_are_bit_exact(changed):
    on = config(**changed)
    conv = Convolution(2 * on.batch, 9, 10, 2 * on.block, 4 * on.block, 3, 3, 1, 1, 2, 1)
    for knobs in feasible_knobs(conv, on, 6):
        assert_correct(conv, Epilogue(True), knobs, on)


@pytest.mark.slow
def test_a_dense_layer_is_a_convolution_of_one_pixel():
    on = Config()
    conv = Convolution(1, 1, 1, 512, 1024, 1, 1)
    for knobs in feasible_knobs(conv, on, 5):
        assert_correct(conv, Epilogue(True, 10, None, None), knobs, on)


def test_slots_share_loaded_data():
    """Two blocks of output channels share their input, two blocks of rows their weights."""
    conv = Convolution(1, 16, 16, 32, 64, 3, 3, 1, 1)
    memory, _ = arrays(conv, Epilogue(), Config())
    one, channels, rows = (
        reference.run(generate(conv, Epilogue(), knobs, Config()), memory).traffic
        for knobs in (
            Knobs(1, 4, 16, 1, 2),
            Knobs(1, 4, 16, 1, 2, oc_nthread=2),
            Knobs(1, 4, 16, 1, 2, h_nthread=2),
        )
    )
    assert channels["inp"] == one["inp"] // 2
    assert channels["wgt"] == one["wgt"]
    assert rows["wgt"] == one["wgt"] // 2
    assert rows["inp"] == one["inp"]


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [
        (Knobs(tile_h=3), "tile_h=3 does not divide 56"),
        (Knobs(tile_co=4, oc_nthread=2), "oc_nthread=2 does not divide the 1 tiles"),
        (Knobs(tile_h=56, tile_w=56), "elements of INP are needed, more than 2048"),
        (Knobs(tile_w=2), "a tile of 2 outputs is too small"),
        (Knobs(tile_h=1, tile_w=56, tile_ci=4, oc_nthread=2), "uops are needed, more than"),
    ],
)
def test_infeasible_knobs_are_rejected_with_the_reason(knobs, reason):
    conv = Convolution(1, 56, 56, 64, 64, 3, 3, 1, 1)
    with pytest.raises(InfeasibleKnobs, match=reason):
        generate(conv, Epilogue(), knobs, Config())


@pytest.mark.parametrize(
    ("conv", "reason"),
    [
        (Convolution(1, 8, 8, 24, 16, 3, 3), "input channels of a group are 24"),
        (Convolution(1, 8, 8, 32, 16, 3, 3, groups=2), "output channels of a group are 8"),
        (Convolution(1, 2, 2, 16, 16, 5, 5), "the kernel is larger than its input"),
    ],
)
def test_unsupported_shapes_are_rejected(conv, reason):
    with pytest.raises(TvmtuneError, match=reason):
        list(points(conv, Config()))


def test_a_missing_token_is_detected():
    """Removing any single flag of a small program breaks a rule."""
    import dataclasses

    conv = Convolution(1, 4, 4, 32, 32, 1, 1)
    program = generate(conv, Epilogue(True), Knobs(1, 2, 4, 1, 1, 2, 1), Config())
    rules.check(program)
    instructions = program.decode()
    flags = ("pop_prev", "pop_next", "push_prev", "push_next")
    changed = 0
    for index, instruction in enumerate(instructions):
        for flag in flags:
            if getattr(instruction, flag):
                words = program.instructions.copy()
                less = dataclasses.replace(instruction, **{flag: False})
                words[index] = isa.encode_all([less], program.config)[0]
                other = dataclasses.replace(program, instructions=words)
                assert rules.violations(other), (index, flag)
                changed += 1
    assert changed > 20
