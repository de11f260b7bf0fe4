"""The arm backend: CPUs of ARM boards, through LLVM, over RPC or on the board itself."""

from __future__ import annotations

from typing import Any

from tvmtune import backend_defaults
from tvmtune.hookspecs import hookimpl
from tvmtune.types import Device, RunnerSpec

prepare = backend_defaults.prepare_quantized
implementations = backend_defaults.implementations_cpu
extract_tasks = backend_defaults.extract_tasks_quantized
make_builder = backend_defaults.make_builder
lower = backend_defaults.lower
export_lib = backend_defaults.export_lib


@hookimpl
def make_target(name: str, attrs: dict[str, Any], remote: str | None) -> Device:
    from tvmtune_arm.target import describe_device

    return describe_device(attrs, remote)


@hookimpl
def hardware_params(device: Device) -> dict[str, Any]:
    from tvmtune_arm.target import parameters

    return parameters(device)


@hookimpl
def make_runner(device: Device) -> RunnerSpec:
    from tvmtune_arm.target import check_board

    check_board(device)
    return backend_defaults.make_runner(device)
