"""The hook implementations of the vta backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmtune import backend_defaults
from tvmtune.hookspecs import hookimpl
from tvmtune.types import BuilderSpec, Device, Network, Prepared, RunnerSpec, Task, Trial

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import tvm


@hookimpl
def make_target(name: str, attrs: dict[str, Any], remote: str | None) -> Device:
    from tvmtune_vta.target import describe_device

    return describe_device(name, attrs, remote)


hardware_params = backend_defaults.hardware_params


@hookimpl
def prepare(
    network: Network,
    device: Device,
    layout: str | None,
    calibration: Mapping[str, np.ndarray] | None,
) -> Prepared:
    from tvmtune_vta.graph_pack.lowering import prepare

    return prepare(network, device, layout, calibration)


@hookimpl
def extract_tasks(prepared: Prepared, device: Device) -> list[Task]:
    from tvmtune_vta import target
    from tvmtune_vta.tuning import tasks

    return tasks.extract(prepared.extra["partition"].packed, target.of(device))


@hookimpl
def make_builder(device: Device) -> BuilderSpec:
    options = {name: device.attrs[name] for name in ("config", "constants")}
    return BuilderSpec("tvmtune_vta.tuning.measure:build", options=options)


@hookimpl
def make_runner(device: Device) -> RunnerSpec:
    return RunnerSpec(
        run="tvmtune_vta.tuning.measure:run",
        check="tvmtune_vta.tuning.measure:check",
        exclusive=False,
        kind="modelled",
        options={"threads": device.threads, "config": device.attrs["config"]},
    )


@hookimpl
def lower(prepared: Prepared, chosen: dict[str, Trial], device: Device) -> tvm.IRModule:
    from tvmtune_vta.graph_pack.lowering import lower

    return lower(prepared, chosen, device)


export_lib = backend_defaults.export_lib


@hookimpl
def serve_init(options: dict[str, Any]) -> None:
    from tvmtune_vta.device import packed_functions

    packed_functions.register(options)
