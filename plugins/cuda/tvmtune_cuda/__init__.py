"""The cuda backend: NVIDIA's GPUs. Kernels are compiled by nvcc or NVRTC, with or without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtune.hookspecs import hookimpl
from tvmtune.types import BuilderSpec, Device, Network, Prepared, RunnerSpec, Task, Trial

if TYPE_CHECKING:
    import tvm


@hookimpl
def make_target(name: str, attrs: dict[str, Any], remote: str | None) -> Device:
    from tvmtune_cuda.target import describe_device

    return describe_device(attrs, remote)


@hookimpl
def hardware_params(device: Device) -> dict[str, Any]:
    return dict(device.params)


@hookimpl
def prepare(network: Network, device: Device, layout: str | None) -> Prepared:
    from tvmtune.graph.pipeline import prepare

    return prepare(network, device, layout or "NHWC")


@hookimpl
def extract_tasks(prepared: Prepared, device: Device) -> list[Task]:
    from tvmtune.graph import gpu_spaces
    from tvmtune.graph.tasks import extract_tasks
    from tvmtune_cuda import tensor_cores

    wanted = tensor_cores.NAME in device.attrs
    further = gpu_spaces.further(device)
    if wanted:
        further[tensor_cores.NAME] = lambda mod: tensor_cores.space(mod, device)
    tasks = extract_tasks(prepared, device, lambda mod: gpu_spaces.space(mod, device), further)
    if wanted:
        tensor_cores.check(tasks)
    return tasks


@hookimpl
def make_builder(device: Device) -> BuilderSpec:
    from dataclasses import replace

    from tvmtune.measure import specs
    from tvmtune_cuda import build

    spec = specs.builder(device)
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

    side_by_side = device.params.get("gpus", [])
    return specs.runner(
        device,
        run="tvmtune_cuda.worker:run",
        check="tvmtune_cuda.worker:check",
        init="tvmtune_cuda.worker:init",
        baseline="tvmtune_cuda.worker:baseline",
        slots=max(1, len(side_by_side)),
        exclusive=False,  # builders leave the GPU alone
        flush=worker.FLUSH if target.FLUSH in device.attrs else "",
        options={"gpus": side_by_side} | build.options(device),
    )


@hookimpl
def lower(prepared: Prepared, chosen: dict[str, Trial], device: Device) -> tvm.IRModule:
    from tvmtune.graph import gpu_spaces
    from tvmtune.graph.lower import lower

    return lower(prepared, chosen, device, lambda mod: gpu_spaces.space(mod, device))


@hookimpl
def export_lib(lowered: tvm.IRModule, device: Device, path: Path) -> Path:
    import tvm

    from tvmtune.deploy.export import export_lib
    from tvmtune_cuda import build, toolkit

    change = build.translate(toolkit.find(), str(device.target["arch"]))
    with build.sources(), tvm.transform.PassContext(config=build.passes_of_libraries(device)):
        return export_lib(lowered, device, path, change)


@hookimpl
def serve_init(options: dict[str, Any]) -> None:
    from tvmtune_cuda import worker

    worker.load()
