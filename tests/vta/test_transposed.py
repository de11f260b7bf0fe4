"""Transposed convolutions, and paddings that differ between sides."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from quantise import cnn
from tvmtune import api
from tvmtune.errors import TvmtuneError
from tvmtune.tuning.budget import Budget
from tvmtune_vta import clock, compute, tasks
from tvmtune_vta.config import Config
from tvmtune_vta.convolution import BIAS, W, X, Y, generate
from tvmtune_vta.knobs import Knobs
from tvmtune_vta.workload import Convolution, Epilogue, reference
from vta.packed import arrays, assert_right, drawn_right, valid

KERNELS = [(4, 2), (3, 2), (2, 2), (1, 2), (5, 3), (5, 2), (3, 1), (2, 3), (7, 4)]
"""With their strides; some are smaller than these, and leave outputs that no input reaches."""


def transposed(
    size: tuple[int, int],
    channels: tuple[int, int],
    kernel: int,
    stride: int,
    pad: int = 0,
    more: int = 0,
    *,
    batch: int = 1,
    groups: int = 1,
) -> Convolution:
    """By the numbers of the transposed one; ``more`` is its output padding."""
    around = kernel - 1 - pad
    return Convolution(
        *(batch, *size, *channels, kernel, kernel, around, around, 1, 1, groups),
        *(more, more, stride, stride),
    )


def test_the_reference_gives_each_input_to_the_outputs_that_it_reaches():
    """By the definition: an input spreads its products with the kernel over the output."""
    kernel, stride, pad, more = 3, 2, 1, 1
    conv = transposed((4, 5), (16, 32), kernel, stride, pad, more)
    assert (conv.out_height, conv.out_width) == (8, 10)
    memory, got = arrays(conv, Epilogue(True, 9, None, None), Config())
    x, w = memory[X].astype(int), memory[W].astype(int)
    sums = np.zeros((2, 16, 8 + 4, 10 + 4), int)  # a margin of `kernel` around, cut off at the end
    for iy, ix, ky, kx in np.ndindex(4, 5, kernel, kernel):
        turned = w[:, 0, kernel - 1 - ky, kernel - 1 - kx]
        at = (iy * stride - pad + ky + 2, ix * stride - pad + kx + 2)
        sums[:, :, at[0], at[1]] += turned @ x[0, 0, iy, ix, 0]
    wanted = sums[:, :, 2:-2, 2:-2] + memory[BIAS][:, 0, :, None, None].astype(int)
    assert np.array_equal(got[0, :, :, :, 0].transpose(0, 3, 1, 2), (wanted >> 9).astype(np.int8))


def test_the_task_says_what_the_reference_computes():
    import tvm

    conv = transposed((3, 4), (16, 16), 3, 2, 1, 1)
    memory, wanted = arrays(conv, compute.EPILOGUE, Config())
    kernel = tvm.compile(compute.module(conv, Config()), "llvm")
    tensors = [tvm.runtime.tensor(memory[n]) for n in (X, W, BIAS)]
    output = tvm.runtime.tensor(np.zeros(wanted.shape, np.int8))
    kernel(*tensors, output)
    assert np.array_equal(output.numpy(), wanted)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 10))]
)
def test_any_shape_is_right_to_the_bit(seed):
    rng = random.Random(seed)
    on, done = Config(), 0
    while done < 6:
        kernel, stride = rng.choice(KERNELS)
        groups = rng.choice([1, 1, 2])
        conv = transposed(
            (rng.randint(2, 9), rng.randint(2, 9)),
            (16 * groups * rng.randint(1, 3), 16 * groups * rng.randint(1, 3)),
            *(kernel, stride, rng.randint(0, kernel - 1), rng.randint(0, stride - 1)),
            batch=rng.choice([1, 1, 2]),
            groups=groups,
        )
        if conv.out_height < 1 or conv.out_width < 1:
            continue
        low, high = rng.choice([(0, 127), (None, None)])
        epilogue = Epilogue(rng.random() < 0.7, rng.choice([0, 8, 17]), low, high)
        done += drawn_right(conv, epilogue, on, rng, orders=done == 0)


@pytest.mark.parametrize(("end_h", "end_w"), [(1, 1), (0, 1), (-1, 0)])
def test_padding_may_differ_between_sides(end_h, end_w):
    conv = Convolution(1, 10, 10, 32, 32, 3, 3, 1, 1, 2, 2, end_h=end_h, end_w=end_w)
    for knobs in valid(conv, Config(), 4):
        assert_right(conv, Epilogue(True), knobs, Config())


def test_no_product_with_the_zeros_between_is_computed():
    """A kernel of 4x4 at a stride of 2 meets four inputs for each output."""
    conv = transposed((8, 8), (64, 64), 4, 2, 1)
    assert (conv.out_height, conv.out_width) == (16, 16)
    assert conv.macs == 16 * 16 * 64 * 64 * 4
    program = generate(conv, Epilogue(True), Knobs(1, 4, 8, 1, 2, 2, 1), Config())
    assert clock.model(program).steps["gemm"] * 16 * 16 == conv.macs


def test_a_task_is_named_by_the_numbers_of_the_transposed_one():
    conv = transposed((8, 8), (64, 32), 4, 2, 1)
    assert tasks.name(conv) == "conv2d_transpose_packed(1,8,8,64,32,4,4,1,1,2,2)"
    same = Convolution(1, 8, 8, 64, 32, 3, 3, 0, 0, 2, 2, end_h=1, end_w=1)
    assert tasks.name(same) == "conv2d_packed(1,8,8,64,32,3,3,0,0,2,2,end=1x1)"


@pytest.mark.slow
def test_they_are_tuned_as_well(tmp_path):
    """Also where the last squares of the output are cut, so that tiles are no factors of it."""
    with pytest.warns(UserWarning, match="calibrated with"):
        plan = api.plan(cnn.decoder(), "vta")
        api.tune(plan, tmp_path / "log.json", budget=Budget(trials=60))
        compiled = api.compile(plan, tmp_path / "lib.so", [tmp_path / "log.json"])
    names = [task.name for task in plan.tasks]
    assert sum(name.startswith("conv2d_transpose_packed(") for name in names) == 2
    assert compiled.metadata["tasks"]["exact"] == len(names) == 3
    trials = [
        trial
        for trial in map(json.loads, (tmp_path / "log.json").read_text().splitlines())
        if "seconds" in trial
    ]
    assert len(trials) >= 60
    assert all(trial["seconds"] for trial in trials)


def test_steps_over_a_spread_input_are_refused():
    conv = Convolution(1, 8, 8, 16, 16, 3, 3, 1, 1, 2, 2, up_h=2, up_w=2)
    with pytest.raises(TvmtuneError, match="its input is spread, and its kernel takes steps"):
        conv.check(Config())


def test_the_reference_and_the_stream_of_other_hardware():
    on = Config.parse(Config().as_dict() | {"LOG_BATCH": 1}, "test")
    conv = transposed((5, 6), (32, 32), 3, 2, 1, batch=2)
    for knobs in valid(conv, on, 3):
        program = generate(conv, Epilogue(), knobs, on)
        memory, wanted = arrays(conv, Epilogue(), on)
        assert np.array_equal(reference(conv, Epilogue(), memory[X], memory[W]), wanted)
        assert program.buffers[Y].shape == wanted.shape
        assert_right(conv, Epilogue(), knobs, on)
