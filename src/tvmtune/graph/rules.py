"""The core's own schedule rules, by the names that blocks carry in ``schedule_rule``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmtune.graph import winograd

Rule = Callable[[Any, Any], list[Any]]
"""``(schedule, block) -> schedules``."""


def leave(sch: Any, block: Any) -> list[Any]:
    """Leave the block to the rules that do not look at names."""
    return [sch]


RULES: dict[str, Rule] = {
    "tvmtune.winograd_input": winograd.schedule_input,
    "tvmtune.winograd_output": winograd.schedule_output,
    # TVM's pooling asks for these rules and has none; without ours it warns on stderr each time.
    "meta_schedule.pool_max": leave,
    "meta_schedule.pool_avg": leave,
    "meta_schedule.adaptive_pool_max": leave,
    "meta_schedule.adaptive_pool_avg": leave,
}


def register() -> None:
    """Make the rules known to MetaSchedule. They are for CPUs; GPUs have the general ones do it all."""
    import tvm_ffi

    for name, rule in RULES.items():
        for kind, function in (("cpu", rule), ("gpu", leave)):
            tvm_ffi.register_global_func(
                f"s_tir.meta_schedule.{kind}.{name}", function, override=True
            )
