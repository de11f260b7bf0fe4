"""The rocm backend: AMD GPUs, compiled by LLVM.

TVM's wheel has no ROCm runtime: libraries run where TVM was built with ROCm.
"""

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
    Network,
    Prepared,
    Task,
    Trial,
)

if TYPE_CHECKING:
    import tvm

hardware_params = backend_defaults.hardware_params
implementations = backend_defaults.implementations_gpu
make_runner = backend_defaults.make_runner


@hookimpl
def make_target(name: str, attrs: dict[str, Any], remote: str | None) -> Device:
    from tvmtune_rocm import quiet
    from tvmtune_rocm.target import describe_device

    with quiet.warnings():
        return describe_device(attrs, remote)


@hookimpl
def prepare(network: Network, device: Device, layout: str | None) -> Prepared:
    from tvmtune_rocm import quiet

    with quiet.warnings():
        return backend_defaults.prepare(network, device, layout)


@hookimpl
def extract_tasks(
    prepared: Prepared,
    device: Device,
    implementations: Sequence[Algorithm | ExtraSpace] | None,
) -> list[Task]:
    from tvmtune_rocm import quiet

    with quiet.warnings():
        return backend_defaults.extract_tasks_gpu(prepared, device, implementations)


@hookimpl
def make_builder(device: Device) -> BuilderSpec:
    from tvmtune_rocm import toolchain

    spec = backend_defaults.make_builder(device)
    options = {**spec.options, "tools": toolchain.find(str(device.target["mcpu"])).to_json()}
    return replace(spec, init="tvmtune_rocm.toolchain:init", options=options)


@hookimpl
def lower(
    prepared: Prepared,
    chosen: dict[str, Trial],
    device: Device,
    implementations: Sequence[Algorithm | ExtraSpace] | None,
) -> tvm.IRModule:
    from tvmtune_rocm import quiet

    with quiet.warnings():
        return backend_defaults.lower_gpu(prepared, chosen, device, implementations)


@hookimpl
def export_lib(lowered: tvm.IRModule, device: Device, path: Path) -> Path:
    from tvmtune_rocm import quiet, toolchain

    toolchain.find(str(device.target["mcpu"])).register()
    with quiet.warnings():
        return backend_defaults.export_lib(lowered, device, path)


@hookimpl
def serve_init(options: dict[str, Any]) -> None:
    from tvmtune_rocm import target

    target.check_runtime()
