"""The mali backend: GPUs through OpenCL, with schedules that suit Mali; ``opencl`` for all others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtune.hookspecs import hookimpl
from tvmtune.types import BuilderSpec, Device, Network, Prepared, RunnerSpec, Task, Trial

if TYPE_CHECKING:
    import tvm


@hookimpl
def make_target(name: str, attrs: dict[str, Any], remote: str | None) -> Device:
    from tvmtune_mali.target import describe_device

    return describe_device(name, attrs, remote)


@hookimpl
def hardware_params(device: Device) -> dict[str, Any]:
    return dict(device.params)


@hookimpl
def prepare(network: Network, device: Device, layout: str | None) -> Prepared:
    from tvmtune.graph.pipeline import prepare

    return prepare(network, device, layout or "NHWC")


@hookimpl
def extract_tasks(prepared: Prepared, device: Device) -> list[Task]:
    from tvmtune.graph.tasks import extract_tasks
    from tvmtune_mali import precision, space

    tasks = extract_tasks(
        prepared,
        device,
        lambda mod: space.tiles(mod, device),
        {space.SHARED: lambda mod: space.shared(mod, device)},
    )
    precision.check(tasks, device)
    return tasks


@hookimpl
def make_builder(device: Device) -> BuilderSpec:
    from dataclasses import replace

    from tvmtune.measure import specs

    return replace(specs.builder(device), init="tvmtune_mali.functions:init")


@hookimpl
def make_runner(device: Device) -> RunnerSpec:
    from tvmtune.measure import specs
    from tvmtune_mali import devices

    return specs.runner(
        device,
        init="tvmtune_mali.worker:init",
        baseline="tvmtune.measure.gpu_baseline:baseline",
        recycle=60,  # a driver keeps 10 MB and more of each kernel that it has built
        exclusive=device.params["device_type"] == "cpu",  # one that computes on the CPUs that build
        options={"environment": devices.environment()},
    )


@hookimpl
def lower(prepared: Prepared, chosen: dict[str, Trial], device: Device) -> tvm.IRModule:
    from tvmtune.graph.lower import lower
    from tvmtune_mali import functions, space

    functions.register()  # for whatever is compiled next
    return lower(prepared, chosen, device, lambda mod: space.tiles(mod, device))


@hookimpl
def export_lib(lowered: tvm.IRModule, device: Device, path: Path) -> Path:
    from tvmtune.deploy.export import export_lib

    return export_lib(lowered, device, path)


@hookimpl
def serve_init(options: dict[str, Any]) -> None:
    import tvmtune_opencl
    from tvmtune_mali import devices

    devices.check(tvmtune_opencl.describe())
