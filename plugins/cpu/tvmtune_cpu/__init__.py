"""The cpu backend: this machine's own processor, or a board's of the same kind, through LLVM."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtune.hookspecs import hookimpl
from tvmtune.types import BuilderSpec, Device, Network, Prepared, RunnerSpec, Task, Trial

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import tvm


@hookimpl
def make_target(name: str, attrs: dict[str, Any], remote: str | None) -> Device:
    from tvmtune_cpu.target import describe

    return describe(attrs, remote)


@hookimpl
def hardware_params(device: Device) -> dict[str, Any]:
    from tvmtune_cpu.target import caches

    return caches() if device.remote is None else dict(device.params)


@hookimpl
def prepare(
    network: Network,
    device: Device,
    layout: str | None,
    calibration: Mapping[str, np.ndarray] | None,
) -> Prepared:
    from tvmtune.quantise.cpu import prepare

    return prepare(network, device, layout, calibration)


@hookimpl
def extract_tasks(prepared: Prepared, device: Device) -> list[Task]:
    from tvmtune.quantise.cpu import extract_tasks
    from tvmtune_cpu.target import space

    return extract_tasks(prepared, device, lambda mod: space(device))


@hookimpl
def make_builder(device: Device) -> BuilderSpec:
    from tvmtune.measure import specs

    return specs.builder(device)


@hookimpl
def make_runner(device: Device) -> RunnerSpec:
    from tvmtune.measure import specs

    return specs.runner(device)


@hookimpl
def lower(prepared: Prepared, chosen: dict[str, Trial], device: Device) -> tvm.IRModule:
    from tvmtune.graph.lower import lower
    from tvmtune_cpu.target import space

    return lower(prepared, chosen, device, lambda mod: space(device))


@hookimpl
def export_lib(lowered: tvm.IRModule, device: Device, path: Path) -> Path:
    from tvmtune.deploy.export import export_lib

    return export_lib(lowered, device, path)
