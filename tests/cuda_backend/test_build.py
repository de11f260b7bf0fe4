"""Building libraries with CUDA machine code on machines without a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm

from cli.commands import tvmtune
from cuda_backend.libraries import device_code
from kernels import sample_modules
from models import tiny_cnn
from tvmtune import api, host, networks
from tvmtune.errors import TvmtuneError
from tvmtune.library import metadata, vm_program
from tvmtune.measure import gpu_baseline
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.spaces import traces
from tvmtune_cuda import build
from tvmtune_cuda.target import describe_device

SAMPLED = 1
SAMPLE = [
    pytest.param("resnet-18", "sm_80", 4, marks=pytest.mark.soak),
    ("mobilenet", "sm_90", 8),
]
"""Networks, architectures, and the stride over their tasks; the soak script covers the whole zoo."""
if os.environ.get("TVMTUNE_SOAK_ZOO"):
    SAMPLE = [(name, arch, 1) for arch in ("sm_80", "sm_90") for name in networks.names()]


@pytest.fixture(scope="module")
def plan(nvcc) -> api.Plan:
    network = OnnxNetwork(tiny_cnn(), name="tiny")
    return api.plan(network, "cuda", attrs={"arch": "sm_90"})


@pytest.fixture(scope="module")
def seen() -> set[tuple[str, str, str]]:
    """(architecture, implementation, workload key) of the kernels built so far."""
    return set()


@pytest.mark.slow
def test_a_kernel_is_built_without_a_gpu(plan, tmp_path):
    spec = plan.backend.make_builder(plan.device)
    implementation = plan.tasks[0].implementations[0]
    target = tvm.target.Target(plan.device.target)
    schedule = implementation.space.default(implementation.mod, target)
    with build.sources():
        path = build.build(schedule.mod, plan.device.target, spec.options, str(tmp_path))
    (code,) = device_code(Path(path))
    assert b"main_kernel" in code


@pytest.mark.slow
def test_the_gpu_baseline_kernel_compiles(plan, tmp_path):
    options = {**plan.backend.make_builder(plan.device).options, "directory": str(tmp_path)}
    with build.sources():
        path = build.build(gpu_baseline.kernel(64), plan.device.target, options, str(tmp_path))
    (code,) = device_code(Path(path))
    assert b"main_kernel" in code


def test_reference_kernels_are_built_for_the_cpu(plan, tmp_path):
    spec = plan.backend.make_builder(plan.device)
    assert spec.reference is not None
    mod = plan.tasks[0].implementations[0].mod
    options = {**spec.options, **spec.reference.options}
    path = build.build(mod, spec.reference.target, options, str(tmp_path))
    assert not device_code(Path(path))
    assert tvm.runtime.load_module(path)


def test_a_compiler_error_is_reported_in_one_line(plan):
    """It is raised in the builder's process, so that only the candidate fails."""
    backend = host.backend("cuda")
    spec = backend.make_builder(plan.device)
    implementation = plan.tasks[0].implementations[0]
    target = tvm.target.Target(plan.device.target)
    trace = traces.to_json(implementation.space.default(implementation.mod, target))
    device = describe_device({"arch": "sm_90"}, None)
    wrong = {**device.target, "arch": "sm_999"}
    with build.sources(), pytest.raises(TvmtuneError, match="^nvcc: .*sm_999"):
        build.build(
            traces.apply(implementation.mod, trace).mod, wrong, spec.options, "/nonexistent"
        )


def test_machine_code_replaces_only_the_cuda_source(nvcc):
    """In a program of three modules, the second of which is CUDA's."""

    def text(value: bytes) -> bytes:
        return len(value).to_bytes(8, "little") + value

    def program(form: bytes, code: bytes) -> bytes:
        module = text(form) + b"functions of cuda" + text(code)
        body = b"tree" + text(b"first") + text(b"cuda") + text(b"cuda") + text(module) + b"last"
        return len(body).to_bytes(8, "little") + body

    before, after = program(b"cuda", b"source" * 9), program(b"cubin", b"\x7fELF" * 5)
    code, other = b"source" * 9, b"\x7fELF" * 5
    assert vm_program.replace_device_code(before, "cuda", "cuda", code, "cubin", other) == after
    for damaged in (before + b"more", before.replace(b"source", b"sauces"), before + text(code)):
        with pytest.raises(TvmtuneError, match="packs"):
            vm_program.replace_device_code(damaged, "cuda", "cuda", code, "cubin", other)


@pytest.mark.slow
@pytest.mark.parametrize(("network", "arch", "every"), SAMPLE)
def test_sampled_schedules_compile(network, arch, every, nvcc, tmp_path, seen):
    plan = api.plan(api.load(network), "cuda", attrs={"arch": arch})
    options = plan.backend.make_builder(plan.device).options
    with build.sources():
        for task in plan.tasks[::every]:
            for implementation in task.implementations:
                kind = (arch, implementation.name, implementation.workload_key)
                if kind in seen:  # networks share many kernels
                    continue
                modules = sample_modules(implementation.mod, implementation.space, SAMPLED)
                assert modules, (task.name, implementation.name)
                for mod in modules:
                    path = build.build(mod, plan.device.target, options, str(tmp_path))
                    assert device_code(Path(path)), task.name
                    Path(path).unlink()
                seen.add(kind)


@pytest.mark.slow
def test_a_network_is_compiled_and_inspected(nvcc, tmp_path):
    onnx.save(tiny_cnn(), tmp_path / "tiny.onnx")
    words = ["tiny.onnx", "--target", "cuda", "--target-attr", "arch=sm_80", "-o", "lib.so"]
    done = tvmtune("compile", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(device_code(tmp_path / "lib.so")) == 1
    done = tvmtune("inspect", "lib.so", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "NVIDIA GPU of sm_80" in done.stdout
    done = tvmtune("bench", "lib.so", cwd=tmp_path)
    assert done.returncode == 1
    assert "driver is not installed" in done.stderr


@pytest.mark.slow
def test_a_library_can_capture_its_launches_in_a_cuda_graph(nvcc, tmp_path):
    """All launches except those that read the inputs or write the outputs."""
    onnx.save(tiny_cnn(), tmp_path / "tiny.onnx")
    words = ["tiny.onnx", "--target", "cuda", "--target-attr", "arch=sm_80"]
    for name, more in {"plain": [], "graphs": ["--target-attr", "cuda-graphs=1"]}.items():
        done = tvmtune("compile", *words, *more, "-o", f"{name}.so", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        listing = tvmtune("inspect", f"{name}.so", cwd=tmp_path).stdout
        captures = b"vm.builtin.cuda_graph.run_or_capture" in (tmp_path / f"{name}.so").read_bytes()
        assert captures == ("cuda-graphs" in listing) == bool(more)
        assert metadata.uses_cuda_graphs(metadata.read(tmp_path / f"{name}.so")) == bool(more)


def test_records_apply_with_and_without_cuda_graphs(nvcc):
    plain, captured = (
        describe_device({"arch": "sm_80", **more}, None) for more in ({}, {"cuda-graphs": 1})
    )
    assert plain.identity() == captured.identity()


@pytest.mark.slow
def test_the_metadata_has_the_target_and_the_output_shapes(plan, tmp_path):
    compiled = api.compile(plan, tmp_path / "lib.so")
    assert len(device_code(compiled.path)) == 1
    assert compiled.metadata["device"]["target"]["arch"] == "sm_90"
    assert np.prod(compiled.metadata["outputs"][0]["shape"]) > 1
