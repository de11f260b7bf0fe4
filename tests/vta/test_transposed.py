"""Transposed convolutions, and asymmetric padding."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from quantize import cnn
from tvmtune import api
from tvmtune.errors import TvmtuneError
from tvmtune.tuning.budget import Budget
from tvmtune_vta.codegen.convolution import BIAS, W, X, Y, generate
from tvmtune_vta.codegen.knobs import Knobs
from tvmtune_vta.codegen.workload import Convolution, Epilogue, numpy_reference
from tvmtune_vta.hardware.config import Config
from tvmtune_vta.timing import time_model
from tvmtune_vta.tuning import conv2d_packed, tasks
from vta.packed import arrays, assert_correct, feasible_knobs, random_knobs_are_correct

KERNELS = [(4, 2), (3, 2), (2, 2), (1, 2), (5, 3), (5, 2), (3, 1), (2, 3), (7, 4)]
"""(kernel, stride) pairs; some kernels are smaller than their stride, and leave outputs without
input."""


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
    """From the transposed parameters; ``more`` is the output padding."""
    around = kernel - 1 - pad
    return Convolution(
        *(batch, *size, *channels, kernel, kernel, around, around, 1, 1, groups),
        *(more, more, stride, stride),
    )


def test_the_reference_scatters_each_input_to_its_outputs():
    """The definition: each input adds its products with the kernel to the output."""
    kernel, stride, pad, more = 3, 2, 1, 1
    conv = transposed((4, 5), (16, 32), kernel, stride, pad, more)
    assert (conv.out_height, conv.out_width) == (8, 10)
    memory, got = arrays(conv, Epilogue(True, 9, None, None), Config())
    x, w = memory[X].astype(int), memory[W].astype(int)
    sums = np.zeros((2, 16, 8 + 4, 10 + 4), int)
    for iy, ix, ky, kx in np.ndindex(4, 5, kernel, kernel):
        turned = w[:, 0, kernel - 1 - ky, kernel - 1 - kx]
        at = (iy * stride - pad + ky + 2, ix * stride - pad + kx + 2)
        sums[:, :, at[0], at[1]] += turned @ x[0, 0, iy, ix, 0]
    wanted = sums[:, :, 2:-2, 2:-2] + memory[BIAS][:, 0, :, None, None].astype(int)
    assert np.array_equal(got[0, :, :, :, 0].transpose(0, 3, 1, 2), (wanted >> 9).astype(np.int8))


def test_the_task_computes_the_reference():
    import tvm

    conv = transposed((3, 4), (16, 16), 3, 2, 1, 1)
    memory, wanted = arrays(conv, conv2d_packed.EPILOGUE, Config())
    kernel = tvm.compile(conv2d_packed.module(conv, Config()), "llvm")
    tensors = [tvm.runtime.tensor(memory[n]) for n in (X, W, BIAS)]
    output = tvm.runtime.tensor(np.zeros(wanted.shape, np.int8))
    kernel(*tensors, output)
    assert np.array_equal(output.numpy(), wanted)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 10))]
)
def test_any_shape_is_bit_exact(seed):
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
        done += random_knobs_are_correct(conv, epilogue, on, rng, orders=done == 0)


@pytest.mark.parametrize(("end_h", "end_w"), [(1, 1), (0, 1), (-1, 0)])
def test_padding_may_differ_between_sides(end_h, end_w):
    conv = Convolution(1, 10, 10, 32, 32, 3, 3, 1, 1, 2, 2, end_h=end_h, end_w=end_w)
    for knobs in feasible_knobs(conv, Config(), 4):
        assert_correct(conv, Epilogue(True), knobs, Config())


def test_products_with_dilation_zeros_are_skipped():
    """With a 4x4 kernel and stride 2, each output has four inputs."""
    conv = transposed((8, 8), (64, 64), 4, 2, 1)
    assert (conv.out_height, conv.out_width) == (16, 16)
    assert conv.macs == 16 * 16 * 64 * 64 * 4
    program = generate(conv, Epilogue(True), Knobs(1, 4, 8, 1, 2, 2, 1), Config())
    assert time_model.program_timeline(program).steps["gemm"] * 16 * 16 == conv.macs


def test_a_task_is_named_by_the_transposed_parameters():
    conv = transposed((8, 8), (64, 32), 4, 2, 1)
    assert tasks.task_name(conv) == "conv2d_transpose_packed(1,8,8,64,32,4,4,1,1,2,2)"
    same = Convolution(1, 8, 8, 64, 32, 3, 3, 0, 0, 2, 2, end_h=1, end_w=1)
    assert tasks.task_name(same) == "conv2d_packed(1,8,8,64,32,3,3,0,0,2,2,end=1x1)"


@pytest.mark.slow
def test_a_network_with_transposed_convolutions_is_tuned(tmp_path):
    """Also if the last units of the output are cropped, so that tiles are not factors of it."""
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


def test_strides_over_a_dilated_input_are_rejected():
    conv = Convolution(1, 8, 8, 16, 16, 3, 3, 1, 1, 2, 2, up_h=2, up_w=2)
    with pytest.raises(TvmtuneError, match="an input dilated by more than 1 requires stride 1"):
        conv.check(Config())


def test_other_configurations_are_bit_exact():
    on = Config.parse(Config().as_dict() | {"LOG_BATCH": 1}, "test")
    conv = transposed((5, 6), (32, 32), 3, 2, 1, batch=2)
    for knobs in feasible_knobs(conv, on, 3):
        program = generate(conv, Epilogue(), knobs, on)
        memory, wanted = arrays(conv, Epilogue(), on)
        assert np.array_equal(numpy_reference(conv, Epilogue(), memory[X], memory[W]), wanted)
        assert program.buffers[Y].shape == wanted.shape
        assert_correct(conv, Epilogue(), knobs, on)
