"""The cpu backend: this machine's CPU, or a board's of the same architecture, through LLVM."""

from __future__ import annotations

from typing import Any

from tvmtune import backend_defaults
from tvmtune.hookspecs import hookimpl
from tvmtune.types import Device

prepare = backend_defaults.prepare_quantized
implementations = backend_defaults.implementations_cpu
extract_tasks = backend_defaults.extract_tasks_quantized
make_builder = backend_defaults.make_builder
make_runner = backend_defaults.make_runner
lower = backend_defaults.lower
export_lib = backend_defaults.export_lib


@hookimpl
def make_target(name: str, attrs: dict[str, Any], remote: str | None) -> Device:
    from tvmtune_cpu.target import describe_device

    return describe_device(attrs, remote)


@hookimpl
def hardware_params(device: Device) -> dict[str, Any]:
    from tvmtune_cpu.target import caches

    return caches() if device.remote is None else dict(device.params)
