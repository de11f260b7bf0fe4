"""A third-party backend: tunes on this machine for any CPU of its architecture.

It has its own target, its own default schedules and its own convolution algorithm (``im2col.py``); the
hooks in which it does not differ are the core's defaults, one line each. The core and TVM are imported
inside the hooks, so that listing the installed backends stays quick.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tvmtune import backend_defaults
from tvmtune.errors import UsageError, nearest
from tvmtune.hookspecs import hookimpl
from tvmtune.types import Algorithm, Device, ExtraSpace, Prepared, Task, Trial

if TYPE_CHECKING:
    import tvm

    from tvmtune.spaces.rule_space import RuleSpace

# What every CPU of the architecture has; LLVM's names.
BASELINES = {"x86_64": "x86-64-v2", "aarch64": "generic", "arm64": "generic"}
VECTOR_BYTES = 16
ATTRIBUTES = ["mcpu"]

prepare = backend_defaults.prepare
make_builder = backend_defaults.make_builder
make_runner = backend_defaults.make_runner
export_lib = backend_defaults.export_lib


@hookimpl
def make_target(name: str, attrs: dict[str, Any], remote: str | None) -> Device:
    from tvmtune.machine import cpu_count

    for attribute in attrs:
        if attribute not in ATTRIBUTES:
            hint = nearest(attribute, ATTRIBUTES)
            raise UsageError(f"the target {name} has no attribute '{attribute}'.{hint}")
    if remote is not None:
        raise UsageError(f"the target {name} works on this machine only, without --remote")
    threads = cpu_count.usable_cpus()
    mcpu = attrs.get("mcpu", BASELINES.get(platform.machine(), "generic"))
    return Device(
        backend=name,
        target={"kind": "llvm", "mcpu": mcpu, "num-cores": threads},
        threads=threads,
        attrs=dict(attrs),
        model=cpu_count.cpu_model(),
    )


@hookimpl
def hardware_params(device: Device) -> dict[str, Any]:
    return {"num_cores": device.threads, "vector_unit_bytes": VECTOR_BYTES, "cache_line_bytes": 64}


@hookimpl
def implementations(device: Device) -> Sequence[Algorithm | ExtraSpace]:
    """Winograd, which the core offers, and the plugin's own im2col."""
    from tvmtune_example.im2col import IM2COL

    return [*backend_defaults.implementations(device), IM2COL]


@hookimpl
def extract_tasks(
    prepared: Prepared,
    device: Device,
    implementations: Sequence[Algorithm | ExtraSpace] | None,
) -> list[Task]:
    from tvmtune.tasks import extract

    return extract.extract_tasks(prepared, device, lambda mod: space(device), implementations)


@hookimpl
def lower(
    prepared: Prepared,
    chosen: dict[str, Trial],
    device: Device,
    implementations: Sequence[Algorithm | ExtraSpace] | None,
) -> tvm.IRModule:
    from tvmtune.tasks import lower as lowering

    return lowering.lower(prepared, chosen, device, lambda mod: space(device), implementations)


@hookimpl
def serve_init(options: dict[str, Any]) -> None:
    """Nothing to prepare: plain CPU code runs on any serving board."""


def space(device: Device) -> RuleSpace:
    """TVM's rules for the target, with a default schedule for the narrow vectors of a baseline."""
    from tvmtune.spaces import rule_space

    return rule_space.RuleSpace(device.target, vector=VECTOR_BYTES // 4)
