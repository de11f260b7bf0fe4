"""The mali backend: GPUs through OpenCL, with schedules that suit Mali; ``opencl`` for all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
    Trial,
)

if TYPE_CHECKING:
    import tvm

hardware_params = backend_defaults.hardware_params
prepare = backend_defaults.prepare
export_lib = backend_defaults.export_lib


@hookimpl
def make_target(name: str, attrs: dict[str, Any], remote: str | None) -> Device:
    from tvmtune_mali.target import describe_device

    return describe_device(name, attrs, remote)


@hookimpl
def implementations(device: Device) -> Sequence[Algorithm | ExtraSpace]:
    from tvmtune_mali import space

    local_memory = ExtraSpace(space.SHARED, lambda mod: space.shared(mod, device))
    return [local_memory, *backend_defaults.implementations(device)]


@hookimpl
def extract_tasks(
    prepared: Prepared,
    device: Device,
    implementations: Sequence[Algorithm | ExtraSpace] | None,
) -> list[Task]:
    from tvmtune.tasks.extract import extract_tasks
    from tvmtune_mali import precision, space

    tasks = extract_tasks(prepared, device, lambda mod: space.tiles(mod, device), implementations)
    precision.check(tasks, device)
    return tasks


@hookimpl
def make_builder(device: Device) -> BuilderSpec:
    return replace(backend_defaults.make_builder(device), init="tvmtune_mali.functions:init")


@hookimpl
def make_runner(device: Device) -> RunnerSpec:
    from tvmtune.measure import specs
    from tvmtune_mali import devices

    return specs.runner(
        device,
        init="tvmtune_mali.worker:init",
        baseline="tvmtune.measure.gpu_baseline:baseline",
        recycle=60,  # drivers keep 10 MB and more of each kernel that they built
        exclusive=device.params["device_type"] == "cpu",  # OpenCL on the CPUs that build
        options={"environment": devices.environment()},
    )


@hookimpl
def lower(
    prepared: Prepared,
    chosen: dict[str, Trial],
    device: Device,
    implementations: Sequence[Algorithm | ExtraSpace] | None,
) -> tvm.IRModule:
    from tvmtune.tasks.lower import lower
    from tvmtune_mali import functions, space

    functions.register()  # for whatever is compiled next
    return lower(prepared, chosen, device, lambda mod: space.tiles(mod, device), implementations)


@hookimpl
def serve_init(options: dict[str, Any]) -> None:
    import tvmtune_opencl
    from tvmtune_mali import devices

    devices.check(tvmtune_opencl.describe())
