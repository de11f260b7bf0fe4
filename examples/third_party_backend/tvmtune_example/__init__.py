"""A third-party backend: tunes on this machine for any CPU of its architecture.

Every hook stands here, most of them one line that delegates to tvmtune's core. The core and TVM are
imported inside the hooks, so that listing the installed backends stays quick.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtune.errors import UsageError, nearest
from tvmtune.hookspecs import hookimpl
from tvmtune.types import BuilderSpec, Device, Network, Prepared, RunnerSpec, Task, Trial

if TYPE_CHECKING:
    import tvm

    from tvmtune.graph.spaces import RuleSpace

# What every CPU of the architecture has; LLVM's names.
BASELINES = {"x86_64": "x86-64-v2", "aarch64": "generic", "arm64": "generic"}
VECTOR_BYTES = 16
ATTRIBUTES = ["mcpu"]


@hookimpl
def make_target(name: str, attrs: dict[str, Any], remote: str | None) -> Device:
    from tvmtune import system

    for attribute in attrs:
        if attribute not in ATTRIBUTES:
            hint = nearest(attribute, ATTRIBUTES)
            raise UsageError(f"the target {name} has no attribute '{attribute}'.{hint}")
    if remote is not None:
        raise UsageError(f"the target {name} works on this machine only, without --remote")
    threads = system.usable_cpus()
    mcpu = attrs.get("mcpu", BASELINES.get(platform.machine(), "generic"))
    return Device(
        backend=name,
        target={"kind": "llvm", "mcpu": mcpu, "num-cores": threads},
        threads=threads,
        attrs=dict(attrs),
        model=system.cpu_model(),
    )


@hookimpl
def hardware_params(device: Device) -> dict[str, Any]:
    return {"num_cores": device.threads, "vector_unit_bytes": VECTOR_BYTES, "cache_line_bytes": 64}


@hookimpl
def prepare(network: Network, device: Device, layout: str | None) -> Prepared:
    from tvmtune.graph import pipeline

    return pipeline.prepare(network, device, layout)


@hookimpl
def extract_tasks(prepared: Prepared, device: Device) -> list[Task]:
    from tvmtune.graph import tasks

    return tasks.extract_tasks(prepared, device, lambda mod: space(device))


@hookimpl
def make_builder(device: Device) -> BuilderSpec:
    from tvmtune import system

    options = {"linker": system.find_linker()}
    return BuilderSpec(build="tvmtune.measure.local:build", options=options)


@hookimpl
def make_runner(device: Device) -> RunnerSpec:
    return RunnerSpec(
        run="tvmtune.measure.local:run",
        check="tvmtune.measure.local:check",
        init="tvmtune.measure.local:init",
        options={"threads": device.threads},
    )


@hookimpl
def lower(prepared: Prepared, chosen: dict[str, Trial], device: Device) -> tvm.IRModule:
    from tvmtune.graph import lower as lowering

    return lowering.lower(prepared, chosen, device, lambda mod: space(device))


@hookimpl
def export_lib(lowered: tvm.IRModule, device: Device, path: Path) -> Path:
    from tvmtune.deploy import export

    return export.export_lib(lowered, device, path)


@hookimpl
def serve_init(options: dict[str, Any]) -> None:
    """Nothing to prepare: plain CPU code runs on any serving board."""


def space(device: Device) -> RuleSpace:
    """TVM's rules for the target, with a default schedule for the narrow vectors of a baseline."""
    from tvmtune.graph import spaces

    return spaces.RuleSpace(device.target, vector=VECTOR_BYTES // 4)
