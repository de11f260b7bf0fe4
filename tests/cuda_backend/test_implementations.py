"""Implementations of convolutions on NVIDIA GPUs, each of which compiles into a library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tvm

from cuda_backend.libraries import device_code, record
from kernels import one_conv, sample_modules
from tvmtune import api
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.types import Task
from tvmtune_cuda import build

NETWORKS = {
    "late": one_conv((1, 64, 7, 7), 32),
    "strided": one_conv((1, 64, 14, 14), 32, stride=2),
    "depthwise": one_conv((1, 32, 14, 14), 32, groups=32),
}
OFFERED = {
    "late": ["direct", "winograd", "implicit-gemm", "split-k"],
    "strided": ["direct", "implicit-gemm", "split-k"],
    "depthwise": ["direct", "register-tiles"],
}


def convolution(name: str, layout: str | None = None) -> tuple[api.Plan, Task]:
    network = OnnxNetwork(NETWORKS[name], name=name)
    plan = api.plan(network, "cuda", attrs={"arch": "sm_90"}, layout=layout)
    (task,) = [each for each in plan.tasks if "conv2d" in each.name]
    return plan, task


@pytest.mark.parametrize("name", NETWORKS)
def test_each_convolution_has_these_implementations(name, nvcc):
    _, task = convolution(name)
    assert [each.name for each in task.implementations] == OFFERED[name]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_record_of_each_implementation_is_compiled(name, layout, nvcc, tmp_path: Path):
    plan, task = convolution(name, layout)
    for each in task.implementations:
        chosen = {task.key: record(plan, task, each)}
        lowered = plan.backend.lower(plan.prepared, chosen, plan.device)
        assert json.loads(lowered.attrs["tvmtune_record"])[task.key] == "exact"
        path = plan.backend.export_lib(lowered, plan.device, tmp_path / f"{each.name}.so")
        assert len(device_code(path)) == 1


@pytest.mark.sweep
@pytest.mark.parametrize("name", NETWORKS)
def test_sampled_schedules_of_each_implementation_compile(name, nvcc, tmp_path: Path):
    plan, task = convolution(name)
    options = plan.backend.make_builder(plan.device).options
    with build.sources():
        for each in task.implementations[1:]:
            (mod,) = sample_modules(each.mod, each.space, 1)
            path = build.build(mod, plan.device.target, options, str(tmp_path))
            assert device_code(Path(path)), each.name
            Path(path).unlink()


def test_the_default_depthwise_kernel_is_vectorized(nvcc):
    """Padding, convolution, bias and ReLU are one kernel."""
    plan, task = convolution("depthwise")
    (direct, *_) = task.implementations
    target = tvm.target.Target(plan.device.target)
    with build.sources():
        compiled = tvm.compile(direct.space.default(direct.mod, target).mod, target=target)
        (source,) = build._sources(compiled.mod)
    assert source.count('extern "C" __global__') == 2  # declared, and defined
    assert "*(float4*)" in source
