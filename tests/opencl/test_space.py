"""The schedules for Mali: the structure of their kernels, and their results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from tvm import te, topi

import kernels
from kernels import kernel, one_conv, prepared, random_args, run_kernel
from models import tiny_cnn
from opencl.conftest import TESTS
from tvmtune import api, host, networks
from tvmtune.errors import TvmtuneError
from tvmtune.operators.implementations import IMPLICIT_GEMM, SPLIT_K
from tvmtune.spaces.gpu_spaces import GpuSpace, group_size, is_product
from tvmtune.spaces.rule_space import replay, tune_context
from tvmtune.types import Implementation
from tvmtune_mali.space import shared, tiles

DEVICE = host.backend("mali").make_target({"board": "rk3399"}, None)
TARGET = tvm.target.Target(DEVICE.target)
MOST_THREADS = 256


def workload(name: str) -> tvm.IRModule:
    def tensor(*shape: int) -> te.Tensor:
        return te.placeholder(shape, "float16" if "half" in name else "float32", f"t{len(args)}")

    args: list[te.Tensor] = []

    def input(*shape: int) -> te.Tensor:
        args.append(tensor(*shape))
        return args[-1]

    if name == "conv":
        y = topi.nn.conv2d_nhwc(input(1, 14, 14, 32), input(3, 3, 32, 64), 1, 1, 1)
    elif name == "conv-nchw":
        y = topi.nn.conv2d_nchw(input(1, 32, 16, 16), input(64, 32, 3, 3), 1, 1, 1)
    elif name == "depthwise":
        y = topi.nn.depthwise_conv2d_nhwc(input(1, 14, 14, 32), input(3, 3, 32, 1), 1, 1, 1)
    elif name in ("dense", "dense-half"):
        y = topi.nn.matmul(input(16, 64), input(64, 128))
    elif name == "self-dense":
        x = input(16, 64)
        k = te.reduce_axis((0, 64), "k")
        y = te.compute((16, 16), lambda i, j: te.sum(x[i, k] * x[j, k], axis=k), "y")
    elif name == "softmax":
        y = topi.nn.softmax(input(4, 1000))
    elif name == "log-softmax":
        y = topi.nn.log_softmax(input(4, 1000))
    elif name == "layer-norm":
        y = topi.nn.layer_norm(input(4, 1000), input(1000), input(1000), [1], 1e-5)
    elif name == "mean":
        y = topi.sum(input(1, 7, 7, 64), axis=[1, 2])
    else:
        y = topi.nn.relu(input(4, 1000))
    return tvm.IRModule({"main": te.create_prim_func([*args, y])})


PRODUCTS = ["conv", "conv-nchw", "depthwise", "dense"]
OTHERS = ["softmax", "log-softmax", "layer-norm", "mean", "relu"]
ALL = [*PRODUCTS, *OTHERS]


def source(mod: tvm.IRModule) -> str:
    return "\n".join(str(m.inspect_source("cl")) for m in tvm.compile(mod, TARGET).mod.imports)


def threads(mod: tvm.IRModule) -> int:
    """Work-items in the largest work-group."""
    size = group_size(mod["main"])
    assert size >= 1
    return size


def random_schedules(name: str, count: int) -> list[tvm.s_tir.Schedule]:
    """Random schedules of the space."""
    mod = workload(name)
    context = tune_context(mod, TARGET, tiles(mod, DEVICE).generator(), seed=1)
    postprocs = list(context.space_generator.postprocs)
    schedules = []
    for seed in range(1, 1 + 4 * count):
        context = tune_context(mod, TARGET, tiles(mod, DEVICE).generator(), seed=seed)
        for design in context.generate_design_space():
            if (schedule := replay(mod, design.trace, postprocs, seed)) is not None:
                schedules.append(schedule)
    assert len(schedules) >= count
    return schedules[:count]


@pytest.mark.sweep
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_use_128_bit_vectors_and_no_local_memory(name):
    """Both in the default schedule and in random ones."""
    mod = workload(name)
    assert is_product(mod)
    first = tiles(mod, DEVICE).default(mod, TARGET)
    text = source(first.mod)
    assert "float4" in text
    assert "__local" not in text
    assert threads(first.mod) <= MOST_THREADS
    vectors = 0
    for schedule in random_schedules(name, 6):
        text = source(schedule.mod)
        assert "__local" not in text
        assert threads(schedule.mod) <= MOST_THREADS
        vectors += "float4" in text
    assert vectors


def test_half_precision_has_eight_values_in_128_bits():
    mod = workload("dense-half")
    text = source(tiles(mod, DEVICE).default(mod, TARGET).mod)
    assert "half8" in text
    assert "__local" not in text


def test_the_product_of_a_matrix_with_itself_is_a_product():
    assert is_product(workload("self-dense"))


@pytest.mark.parametrize("name", OTHERS)
def test_other_kernels_are_not_tiled_and_have_one_space(name):
    mod = workload(name)
    assert not is_product(mod)
    assert shared(mod, DEVICE) is None
    schedule = tiles(mod, DEVICE).default(mod, TARGET)
    assert threads(schedule.mod) <= MOST_THREADS


@pytest.mark.parametrize("name", ALL)
def test_a_small_device_gets_small_work_groups(name):
    small = host.backend("mali").make_target({"board": "rk3399", "max_threads_per_block": 16}, None)
    mod = workload(name)
    schedule = tiles(mod, small).default(mod, tvm.target.Target(small.target))
    assert threads(schedule.mod) <= 16


@pytest.mark.slow
def test_tvms_own_rules_are_a_second_space():
    """They share operands in local memory; measurements decide."""
    mod = workload("conv")
    space = shared(mod, DEVICE)
    context = tune_context(mod, TARGET, space.generator(), seed=1)
    postprocs = list(context.space_generator.postprocs)
    designs = context.generate_design_space()
    schedules = [replay(mod, d.trace, postprocs, seed) for d in designs for seed in range(1, 30)]
    texts = [source(schedule.mod) for schedule in schedules if schedule is not None][:3]
    assert texts
    assert all("__local" in text for text in texts)
    assert "__local" in source(space.default(mod, TARGET).mod)


def test_tasks_have_direct_and_shared_implementations(tmp_path):
    onnx.save(tiny_cnn(), tmp_path / "model.onnx")
    plan = api.plan(networks.load(str(tmp_path / "model.onnx")), "mali", attrs={"board": "rk3399"})
    names = [[i.name for i in task.implementations] for task in plan.tasks]
    assert all(offered[0] == "direct" for offered in names)
    assert any("shared" in offered for offered in names)
    for task in plan.tasks:
        for implementation in task.implementations:
            assert isinstance(implementation, Implementation)
            assert (implementation.workload_key == task.key) == (
                implementation.name in ("direct", "shared")
            )


def test_a_kernel_that_only_a_cpu_can_run_is_rejected():
    """TVM's CPU sort calls a host function, which would crash on device memory."""
    x = te.placeholder((4, 8), "float32", "x")
    mod = tvm.IRModule({"main": te.create_prim_func([x, topi.sort(x)])})
    with pytest.raises(TvmtuneError, match="no GPU kernel computes .*sort"):
        GpuSpace(DEVICE.target).default(mod, TARGET)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    # The others' only schedule is the one that the operators of the importer have below.
    [*PRODUCTS, OTHERS[0], *(pytest.param(name, marks=pytest.mark.soak) for name in OTHERS[1:])],
)
def test_kernels_are_correct(name, run, tmp_path):
    mod = workload(name)
    schedules = [tiles(mod, DEVICE).default(mod, TARGET)]
    schedules += random_schedules(name, 2) if name in PRODUCTS else []
    assert_correct(mod, [schedule.mod for schedule in schedules], run, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [IMPLICIT_GEMM, SPLIT_K], ids=lambda each: each.name)
def test_convolutions_as_matrix_products_are_correct(algorithm, run, tmp_path):
    """OpenCL on this CPU stands in for the NVIDIA and AMD GPUs whose backends offer them."""
    network = prepared(one_conv((1, 64, 7, 7), 32))
    mod = kernel(network, algorithm)
    space = GpuSpace(DEVICE.target)
    scheduled = [space.default(mod, TARGET).mod, *kernels.sample_modules(mod, space, 3)]
    assert len(scheduled) == 4
    assert_correct(mod, scheduled, run, tmp_path)


def assert_correct(mod, scheduled, run, folder):
    """Each scheduled kernel computes on the device what ``mod`` computes on this CPU."""
    args = random_args(mod)
    want = run_kernel(mod, args)
    for number, each in enumerate(scheduled):
        case = folder / str(number)
        case.mkdir()
        (case / "kernel.json").write_text(tvm.ir.save_json(each))
        np.savez(case / "arrays.npz", *args, want)
    errors = run("errors_of_kernels", [str(folder / str(n)) for n in range(len(scheduled))])
    assert all(e <= 1e-5 for e in errors), errors


@pytest.mark.slow
def test_every_operator_of_the_importer_is_correct_without_records(pocl: Path):
    """Runs tests/passes/test_operators.py on OpenCL instead of this machine's CPU, in NHWC."""
    suite = TESTS / "passes" / "test_operators.py"
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    env = {"TVMTUNE_TEST_TARGET": "opencl", "XDG_CACHE_HOME": str(pocl), "PYTHONPATH": path}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-k",
            "not NCHW",
            str(suite),
        ],
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")} | env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
