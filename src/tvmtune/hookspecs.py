"""The hooks that a backend plugin supplies. Bodies live in the plugins; often they are one line that
delegates to the core. ``docs/plugins.md`` explains each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import tvm

    from tvmtune.types import BuilderSpec, Device, Network, Prepared, RunnerSpec, Task, Trial

API_VERSION = 2
"""2: ``prepare`` may take ``calibration``; plugins whose ``prepare`` does not are as good as before."""

hookspec = pluggy.HookspecMarker("tvmtune")
hookimpl = pluggy.HookimplMarker("tvmtune")


@hookspec(firstresult=True)
def make_target(name: str, attrs: dict[str, Any], remote: str | None) -> Device:
    """Describe the device called ``name`` (the entry point that was asked for)."""


@hookspec(firstresult=True)
def hardware_params(device: Device) -> dict[str, Any]:
    """Read the hardware's parameters; defaults where it cannot be reached."""


@hookspec(firstresult=True)
def prepare(
    network: Network,
    device: Device,
    layout: str | None,
    calibration: Mapping[str, np.ndarray] | None,
) -> Prepared:
    """Lay the network out for the device; the same result for tune and compile. ``calibration``: sample
    inputs, (M x N, ...) for M runs of the network, for backends that compute in whole numbers; a hook
    that has no use for them leaves that argument out."""


@hookspec(firstresult=True)
def extract_tasks(prepared: Prepared, device: Device) -> list[Task]:
    """Cut the prepared network into tasks with their implementations."""


@hookspec(firstresult=True)
def make_builder(device: Device) -> BuilderSpec:
    """Say how a candidate is built."""


@hookspec(firstresult=True)
def make_runner(device: Device) -> RunnerSpec:
    """Say how an artifact is timed and checked."""


@hookspec(firstresult=True)
def lower(prepared: Prepared, chosen: dict[str, Trial], device: Device) -> tvm.IRModule:
    """Apply the chosen trial of each task (by task key) to the network; defaults elsewhere."""


@hookspec(firstresult=True)
def export_lib(lowered: tvm.IRModule, device: Device, path: Path) -> Path:
    """Compile the lowered network into the library at ``path``."""


@hookspec(firstresult=True)
def serve_init(options: dict[str, Any]) -> None:
    """Prepare a process that runs libraries, a board's or this one: packed functions, a runtime."""
