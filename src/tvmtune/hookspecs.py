"""The hooks of a backend plugin: signatures only. ``docs/plugins.md`` explains each.

Defaults that a plugin can take over in one line are in :mod:`tvmtune.backend_defaults`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import tvm

    from tvmtune.types import (
        Algorithm,
        BuilderSpec,
        Device,
        ExtraSpace,
        Network,
        Prepared,
        RunnerSpec,
        Task,
        Trial,
    )

API_VERSION = 3
"""Version of these signatures. Plugins written for an earlier version still work.

2: ``prepare`` may take ``calibration``.
3: ``implementations``; ``extract_tasks`` and ``lower`` may take what it returned.
"""

hookspec = pluggy.HookspecMarker("tvmtune")
hookimpl = pluggy.HookimplMarker("tvmtune")

Hook = TypeVar("Hook", bound=Callable[..., Any])


def optional(hook: Hook) -> Hook:
    """Mark a hook that a plugin may omit."""
    vars(hook)["optional"] = True
    return hook


@hookspec(firstresult=True)
def make_target(name: str, attrs: dict[str, Any], remote: str | None) -> Device:
    """Describe the device called ``name`` (the entry point that was requested)."""


@hookspec(firstresult=True)
def hardware_params(device: Device) -> dict[str, Any]:
    """Read the hardware's parameters; return defaults if it cannot be reached."""


@hookspec(firstresult=True)
def prepare(
    network: Network,
    device: Device,
    layout: str | None,
    calibration: Mapping[str, np.ndarray] | None,
) -> Prepared:
    """Lay out the network for the device; tune and compile must get the same result. ``calibration``:
    sample inputs of shape (M x N, ...) for M runs of the network, for int8 quantization. Omit that
    argument if the backend does not quantize."""


@optional
@hookspec(firstresult=True)
def implementations(device: Device) -> Sequence[Algorithm | ExtraSpace]:
    """List the operator implementations to try beside the direct one, in order."""


@hookspec(firstresult=True)
def extract_tasks(
    prepared: Prepared,
    device: Device,
    implementations: Sequence[Algorithm | ExtraSpace] | None,
) -> list[Task]:
    """Split the prepared network into tasks with their implementations. ``implementations``: the
    result of that hook, or None if the plugin omits it."""


@hookspec(firstresult=True)
def make_builder(device: Device) -> BuilderSpec:
    """Specify how candidates are built."""


@hookspec(firstresult=True)
def make_runner(device: Device) -> RunnerSpec:
    """Specify how artifacts are timed and checked."""


@hookspec(firstresult=True)
def lower(
    prepared: Prepared,
    chosen: dict[str, Trial],
    device: Device,
    implementations: Sequence[Algorithm | ExtraSpace] | None,
) -> tvm.IRModule:
    """Apply the chosen trial of each task (by task key) to the network; defaults elsewhere. A trial
    that ``is_default`` stands for the default schedule of its implementation."""


@hookspec(firstresult=True)
def export_lib(lowered: tvm.IRModule, device: Device, path: Path) -> Path:
    """Compile the lowered network into the library at ``path``."""


@optional
@hookspec(firstresult=True)
def serve_init(options: dict[str, Any]) -> None:
    """Prepare a process that runs libraries, here or on a board: packed functions, a runtime."""
