"""Apply the chosen records to a network.

Every kernel gets a schedule: that of its own record, of a record with the same anchor block, or the
space's default. The module's ``tvmtune_record`` attribute says which: a JSON object from task keys to
"exact", "anchor" or "default". Its ``tvmtune_kernels`` attribute is a JSON object from task keys to
names of kernels: other implementations have other names than their tasks.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tvmtune import phases
from tvmtune.machine import parallel
from tvmtune.operators.implementations import DEFAULT, AlgorithmSelection
from tvmtune.passes import state_updates
from tvmtune.passes.bindings import calls_by_operator
from tvmtune.passes.blocks import blocks
from tvmtune.passes.call_sites import CallSite, as_workload, call_sites
from tvmtune.passes.pipeline import graph_of, legalize, pack_weights, release
from tvmtune.passes.workload_keys import workload_key
from tvmtune.spaces import rules, tensor_intrinsics, traces
from tvmtune.spaces.rule_space import RuleSpace, apply_anchor
from tvmtune.tasks.extract import SpaceFor, changed_workloads
from tvmtune.types import (
    DIRECT,
    Algorithm,
    Device,
    ExtraSpace,
    Prepared,
    Space,
    Trial,
    product,
    state_positions,
)

if TYPE_CHECKING:
    import tvm

RECORD = "tvmtune_record"
KERNELS = "tvmtune_kernels"
_MATTERS = 1 << 16
"""Iterations of a kernel in plain loops that take a noticeable time: about 50 us."""
MODELLED = "tvmtune_modelled"
"""Attribute of modules whose accelerator is simulated: a JSON list with one object per program, with
``name``, modelled ``seconds`` per launch, and whatever else there is to report."""


def lower(
    prepared: Prepared,
    chosen: Mapping[str, Trial],
    device: Device,
    space_for: SpaceFor | None = None,
    implementations: Sequence[Algorithm | ExtraSpace] | None = None,
) -> tvm.IRModule:
    """The network as scheduled kernels with packed weights, ready to compile.

    ``chosen`` maps a task's key to its trial. A trial of another workload than the kernel's own counts
    as a record of the same anchor block; its ``source_module`` holds the workload that it was
    recorded for. ``space_for`` and ``implementations`` are those of
    :func:`tvmtune.tasks.extract.extract_tasks`.
    """
    import tvm

    make = space_for or (lambda mod: RuleSpace(device.target))
    target = tvm.target.Target(device.target)
    tensor_intrinsics.load_for(str(target.kind.name))
    graph = graph_of(prepared)
    keys = prepared.keys
    if not keys:
        direct = call_sites(legalize(graph, device))
        keys = {s.index: workload_key(as_workload(s.func)) for s in direct}
    offered = DEFAULT if implementations is None else implementations
    algorithms = [each for each in offered if isinstance(each, Algorithm)]
    only = _calls_by_algorithm(prepared, device, algorithms, keys, chosen)
    used = [a for a in algorithms if only.get(a.name)]
    mod = legalize(graph, device, AlgorithmSelection(used, only).legalizers() if used else None)
    sites: dict[str, CallSite] = {}
    for site in call_sites(mod):
        sites.setdefault(site.name, site)

    makers = _space_makers(prepared, used, only)

    def schedule(site: CallSite) -> tuple[Any, str]:
        workload = as_workload(site.func)
        space = makers.get(site.index, make)(workload) or make(workload)
        func, how = _schedule(workload, chosen.get(keys[site.index]), space, target)
        named = func.with_attr("global_symbol", site.name)
        return named.with_attr("tirx.is_scheduled", True), how

    # Threads must find everything registered.
    rules.register()
    for trial in chosen.values():
        with contextlib.suppress(Exception):  # a log may hold anything; _schedule reports it
            tensor_intrinsics.load_named(trial.trace[0])
    threads = None if target.kind.name == "llvm" else 1
    scheduled = parallel.each(schedule, list(sites.values()), "scheduling kernels", threads=threads)
    records: dict[str, str] = {}
    kernels: dict[str, str] = {}
    names = {str(g.name_hint): g for g in mod.get_global_vars()}
    plain = []
    for (name, site), (func, how) in zip(sites.items(), scheduled, strict=True):
        if how == "default" and is_plain(site.func, func):
            plain.append(name)
        mod.update_func(names[name], func)
        records[keys[site.index]] = how
        kernels[keys[site.index]] = name
    if plain:
        shown = ", ".join(plain[:3]) + (", ..." if len(plain) > 3 else "")
        warnings.warn(
            f"no schedule rule fits {len(plain)} of {len(sites)} kernels ({shown}): they run as plain "
            "loops in one thread, which can be tens of times slower; please report them",
            stacklevel=2,
        )
    phases.report("packing weights")
    packed = pack_weights(mod, device)
    if device.runtime == "cpu":
        packed = state_updates.in_place(packed, state_positions(prepared.network))
    packed = packed.with_attr(RECORD, json.dumps(records))
    packed = packed.with_attr(KERNELS, json.dumps(kernels))
    del graph, mod
    release(prepared)
    return packed


def is_plain(workload: Any, scheduled: Any) -> bool:
    """Whether a kernel has the blocks of its workload, no loop in threads or vectors, and so many
    iterations that it matters.

    Kernels that are written by hand, such as scatters, have loops that no schedule changes.
    """
    found = blocks(scheduled)
    if [str(block.name_hint) for block in found] != [str(b.name_hint) for b in blocks(workload)]:
        return False
    iterations = max(product([int(axis.dom.extent) for axis in b.iter_vars]) for b in found)
    return iterations >= _MATTERS and not _has_schedule(scheduled)


def _has_schedule(function: Any) -> bool:
    """Whether loops of a PrimFunc run in threads or vectors."""
    from tvm import tirx
    from tvm_ffi import structural_walk

    found: list[bool] = []
    structural_walk(
        function.body, (tirx.For, lambda loop: found.append(loop.kind != tirx.ForKind.SERIAL))
    )
    return any(found)


def _calls_by_algorithm(
    prepared: Prepared,
    device: Device,
    algorithms: Sequence[Algorithm],
    keys: Mapping[int, str],
    chosen: Mapping[str, Trial],
) -> dict[str, set[int]]:
    """For each algorithm, which of its applicable calls (in the order of the graph) shall use it."""
    wanted: dict[str, set[int]] = {}
    names = {t.implementation for t in chosen.values()} - {DIRECT}
    untuned = any(key not in chosen for key in keys.values())
    for algorithm in algorithms:
        if algorithm.name not in names and not (untuned and algorithm.prefers is not None):
            continue
        if algorithm.name not in prepared.changed:
            calls = calls_by_operator(prepared.graph)
            changed_workloads(prepared, device, algorithm, keys, calls)
        # Empty for a log from before extraction checked the fusion.
        changed = prepared.changed[algorithm.name]
        wanted[algorithm.name] = {
            number
            for index, (number, preferred) in changed.items()
            if (
                chosen[keys[index]].implementation == algorithm.name
                if keys[index] in chosen
                else preferred and algorithm.prefers is not None
            )
        }
    return wanted


def _space_makers(
    prepared: Prepared, algorithms: Sequence[Algorithm], only: Mapping[str, set[int]]
) -> dict[int, Callable[[Any], Space | None]]:
    """What makes the space of a call that an algorithm with spaces of its own computes, by the call's
    index in program order. Of several algorithms the first computes it."""
    return {
        index: algorithm.space_for
        for algorithm in reversed(algorithms)
        if algorithm.space_for is not None
        for index, (number, _) in prepared.changed[algorithm.name].items()
        if number in only[algorithm.name]
    }


def _schedule(
    workload: tvm.IRModule, trial: Trial | None, space: Any, target: tvm.target.Target
) -> tuple[Any, str]:
    if trial is not None and not trial.is_default:
        own = trial.workload == workload_key(workload)
        try:
            if own:
                return traces.apply(workload, trial.trace).mod["main"], "exact"
            if trial.source_module is None:
                raise ValueError("its workload is not in the log")
            donor = traces.load_module(trial.source_module)
            sch = apply_anchor(workload, donor, trial.trace, target, space)
            return sch.mod["main"], "anchor"
        except Exception as error:
            why = (
                "no longer applies"
                if own
                else "of a similar task, or of another dtype, does not fit"
            )
            warnings.warn(
                f"a record ({trial.implementation}) {why} ({error}); "
                "the default schedule takes its place",
                stacklevel=2,
            )
    return space.default(workload, target).mod["main"], "default"
