"""The cuda backend: NVIDIA GPUs. nvcc or NVRTC compiles the kernels, with or without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtune import backend_defaults
from tvmtune.hookspecs import hookimpl
from tvmtune.types import (
    Algorithm,
    BuilderSpec,
    Device,
    ExtraSpace,
    Prepared,
    RunnerSpec,
    Task,
)

if TYPE_CHECKING:
    import tvm

hardware_params = backend_defaults.hardware_params
prepare = backend_defaults.prepare
lower = backend_defaults.lower_gpu


@hookimpl
def make_target(name: str, attrs: dict[str, Any], remote: str | None) -> Device:
    from tvmtune_cuda.target import describe_device

    return describe_device(attrs, remote)


@hookimpl
def implementations(device: Device) -> Sequence[Algorithm | ExtraSpace]:
    from tvmtune_cuda.implementations import offered

    return [*offered(device)]


@hookimpl
def extract_tasks(
    prepared: Prepared,
    device: Device,
    implementations: Sequence[Algorithm | ExtraSpace] | None,
) -> list[Task]:
    from tvmtune_cuda import tensor_cores

    tasks = backend_defaults.extract_tasks_gpu(prepared, device, implementations)
    tensor_cores.check(tasks, device)
    return tasks


@hookimpl
def make_builder(device: Device) -> BuilderSpec:
    from tvmtune_cuda import build

    spec = backend_defaults.make_builder(device)
    return replace(
        spec,
        build="tvmtune_cuda.build:build",
        init="tvmtune_cuda.build:init",
        options=spec.options | build.options(device),
    )


@hookimpl
def make_runner(device: Device) -> RunnerSpec:
    from tvmtune.measure import specs
    from tvmtune_cuda import build, target, worker

    idle_gpus = device.params.get("gpus", [])
    return specs.runner(
        device,
        run="tvmtune_cuda.worker:run",
        check="tvmtune_cuda.worker:check",
        init="tvmtune_cuda.worker:init",
        baseline="tvmtune_cuda.worker:baseline",
        slots=max(1, len(idle_gpus)),
        exclusive=False,  # builders do not use the GPU
        flush=worker.FLUSH if target.FLUSH in device.attrs else "",
        options={"gpus": idle_gpus} | build.options(device),
    )


@hookimpl
def export_lib(lowered: tvm.IRModule, device: Device, path: Path) -> Path:
    import tvm

    from tvmtune.library.export import export_lib
    from tvmtune_cuda import build, mma_tiles, toolkit

    change = build.translate(toolkit.find(), str(device.target["arch"]))
    with build.sources(), tvm.transform.PassContext(config=build.passes_of_libraries(device)):
        return export_lib(mma_tiles.insert(lowered), device, path, change)


@hookimpl
def serve_init(options: dict[str, Any]) -> None:
    from tvmtune_cuda import worker

    worker.load()
