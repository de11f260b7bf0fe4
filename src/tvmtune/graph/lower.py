"""Apply the chosen records to a network.

Every kernel ends up with a schedule: its own record's, that of a record with the same anchor block,
or the space's default. Which it was stands in the module's ``tvmtune_record`` attribute, a JSON object
from task keys to "exact", "anchor" or "default".
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tvmtune.graph import intrinsics, traces
from tvmtune.graph.algorithms import Choice, algorithms_for
from tvmtune.graph.pipeline import graph_of, legalize, pack_weights, release
from tvmtune.graph.sites import Site, as_workload, call_sites
from tvmtune.graph.spaces import RuleSpace, apply_anchor
from tvmtune.graph.tasks import DIRECT, SpaceFor, algorithm_sites
from tvmtune.records.identity import workload_key
from tvmtune.types import Device, Prepared, Trial

if TYPE_CHECKING:
    import tvm

RECORD = "tvmtune_record"
MODELLED = "tvmtune_modelled"
"""An attribute of modules whose accelerator is simulated: a JSON list with an object for each of its
programs, of ``name``, modelled ``seconds`` of a launch, and whatever else there is to say."""


def lower(
    prepared: Prepared,
    chosen: Mapping[str, Trial],
    device: Device,
    space_for: SpaceFor | None = None,
) -> tvm.IRModule:
    """The network as scheduled kernels with packed weights, ready to be compiled.

    ``chosen`` maps a task's key to its trial. A trial of another workload than the kernel's own is
    taken as a record of the same anchor block; its ``extra["module"]`` holds the workload that it
    was recorded for.
    """
    import tvm

    make = space_for or (lambda mod: RuleSpace(device.target))
    target = tvm.target.Target(device.target)
    intrinsics.load_for(str(target.kind.name))
    graph = graph_of(prepared)
    direct = call_sites(legalize(graph, device))
    keys = {s.index: workload_key(as_workload(s.func)) for s in direct}
    only = _algorithm_sites(prepared, device, direct, keys, chosen)
    used = [a for a in algorithms_for(device) if only.get(a.name)]
    mod = legalize(graph, device, Choice(used, only).legalizers() if used else None)
    scheduled: dict[str, Any] = {}
    records: dict[str, str] = {}
    for site in call_sites(mod):
        if site.name in scheduled:
            continue
        workload = as_workload(site.func)
        trial = chosen.get(keys[site.index])
        func, how = _schedule(workload, trial, make(workload), target)
        scheduled[site.name] = func.with_attr("global_symbol", site.name).with_attr(
            "tirx.is_scheduled", True
        )
        records[keys[site.index]] = how
    names = {str(g.name_hint): g for g in mod.get_global_vars()}
    for name, func in scheduled.items():
        mod.update_func(names[name], func)
    packed = pack_weights(mod, device).with_attr(RECORD, json.dumps(records))
    del graph, mod
    release(prepared)
    return packed


def _algorithm_sites(
    prepared: Prepared,
    device: Device,
    direct: list[Site],
    keys: Mapping[int, str],
    chosen: Mapping[str, Trial],
) -> dict[str, set[int]]:
    """For each algorithm, which of its applicable calls (in program order) are to use it."""
    wanted: dict[str, set[int]] = {}
    names = {t.implementation for t in chosen.values()} - {DIRECT}
    for algorithm in algorithms_for(device):
        if algorithm.name not in names:
            continue
        sites = algorithm_sites(prepared, device, algorithm)
        changed = [s.index for s in sites if workload_key(as_workload(s.func)) != keys.get(s.index)]
        wanted[algorithm.name] = {
            ordinal
            for ordinal, index in enumerate(changed)
            if keys[index] in chosen and chosen[keys[index]].implementation == algorithm.name
        }
    return wanted


def _schedule(
    workload: tvm.IRModule, trial: Trial | None, space: Any, target: tvm.target.Target
) -> tuple[Any, str]:
    if trial is not None:
        try:
            if trial.workload == workload_key(workload):
                return traces.apply(workload, trial.trace).mod["main"], "exact"
            donor = traces.load_module(trial.extra["module"])
            return apply_anchor(workload, donor, trial.trace, target).mod["main"], "anchor"
        except Exception as error:
            warnings.warn(
                f"a record of {trial.implementation} does not apply any more ({error}); "
                "the default schedule takes its place",
                stacklevel=2,
            )
    return space.default(workload, target).mod["main"], "default"
