"""Choose the records of a network's tasks and compile a library with metadata."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tvmtune import phases
from tvmtune.arrays import nbytes
from tvmtune.atomic_write import replacing
from tvmtune.bench import verify
from tvmtune.errors import TvmtuneError
from tvmtune.library import embedded_weights, metadata, static_library
from tvmtune.machine import cpu_features
from tvmtune.records.best import best_of, comparable
from tvmtune.records.database import METASCHEDULE
from tvmtune.records.log import Log
from tvmtune.records.schema import workload_module
from tvmtune.runtime.library import Library
from tvmtune.runtime.low_memory import WeightInjectionError
from tvmtune.tasks.lower import KERNELS, MODELLED, RECORD
from tvmtune.tasks.plan import Plan
from tvmtune.types import DIRECT, JSON, SHIPPED, Device, Network, Task, Trial, is_operator


class WrongOutput(TvmtuneError):
    """A library's outputs differ from those of the network's reference."""


@dataclass(frozen=True)
class Compiled:
    """A library and what went into it."""

    path: Path
    metadata: JSON
    fallbacks: int = 0
    """Tasks that got a more accurate kernel than their fastest, for the sake of the whole network."""
    unverified: tuple[str, ...] = ()
    """Tasks whose kernels were measured, but never checked by themselves."""
    warning: str = ""
    """Why the check of the outputs said little, if so."""

    @property
    def counts(self) -> dict[str, int]:
        """Tasks with a record of their exact key, with one of their anchor key, with a shipped one, and
        with none."""
        return {k: self.metadata["tasks"][k] for k in metadata.RECORD_KINDS}


def choose_records(
    logs: Sequence[Log],
    tasks: Sequence[Task],
    device: Device,
    *,
    shipped: Log | None = None,
    exact: Collection[str] = (),
) -> dict[str, Trial]:
    """The trial to use for each task, by key: its own best, else the best of its anchor block.

    Tasks for which ``logs`` have neither are looked up in ``shipped`` (:mod:`tvmtune.records.shipped`).
    Tasks whose keys are in ``exact`` get no record that rounds more than the direct algorithm. Of
    ``logs``, only measurements of this very device count; raises :class:`TvmtuneError` if they hold
    some and none is of this device.
    """
    trials = [t for log in logs for t in comparable(log.trials, device.identity())]
    modelled = [t for log in logs for t in comparable(log.trials, device.identity(), "modelled")]
    if not trials and not modelled and any(log.trials for log in logs):
        raise TvmtuneError(_other_device(logs, device))
    usable = trials or modelled
    chosen = _choose(logs, usable, tasks, exact)
    if not chosen and not exact and any(trial.ok for trial in usable):
        paths = ", ".join(str(log.path) for log in logs)
        if all(log.path.is_dir() for log in logs):
            raise TvmtuneError(
                f"{paths}: no workload of the database is a kernel "
                "of this network: it is of another, or was not legalized and fused as tvmtune does"
            )
        networks = sorted({str(h["network"].get("name", "?")) for g in logs for h in g.headers})
        raise TvmtuneError(
            f"{paths} is the log of another network "
            f"({', '.join(networks)}): none of its records fits a task of this one. Give a log of this "
            "network, or none"
        )
    if shipped is not None:
        others = [task for task in tasks if task.key not in chosen]
        chosen |= _choose([shipped], shipped.trials, others, exact)
    return chosen


def _choose(
    logs: Sequence[Log], usable: Sequence[Trial], tasks: Sequence[Task], exact: Collection[str]
) -> dict[str, Trial]:
    """As :func:`choose_records`, from the ``usable`` trials of ``logs``."""
    usable = _assigned(usable, tasks)
    accurate = {(t.key, i.name) for t in tasks for i in t.implementations if i.exact}
    best = best_of(
        t for t in usable if t.task not in exact or (t.task, t.implementation) in accurate
    )
    lines = {key: line for log in logs for key, line in log.tasks.items()}
    # Schedules of other algorithms reach into the epilogue. Only those of the direct workload, whose
    # key is the task's, fit another fusion.
    direct = best_of(t for t in usable if t.workload == t.task)
    by_anchor: dict[str, list[Trial]] = {}
    for key, trial in direct.items():
        if key in lines:
            by_anchor.setdefault(lines[key]["anchor"], []).append(trial)
    chosen = {}
    for task in tasks:
        names = {i.name for i in task.implementations}
        donors = [t for t in by_anchor.get(task.anchor_key, ()) if t.implementation in names]
        if task.key in best:
            chosen[task.key] = best[task.key]
        elif donors and task.key not in lines:
            donor = min(donors, key=lambda t: t.latency)
            module = workload_module(lines[donor.task], donor.implementation)
            chosen[task.key] = donor.evolve(source_module=module)
    return chosen


def _assigned(trials: Sequence[Trial], tasks: Sequence[Task]) -> list[Trial]:
    """The trials, those of a MetaSchedule database as trials of the tasks that have their workload.

    A database does not tell which implementation of which task a workload is.
    """
    places = {i.workload_key: (t.key, i.name) for t in tasks for i in t.implementations}
    assigned = []
    for trial in trials:
        if trial.tuner == METASCHEDULE and trial.workload in places:
            task, implementation = places[trial.workload]
            trial = trial.evolve(task=task, implementation=implementation)
        assigned.append(trial)
    return assigned


def compile_library(
    plan: Plan,
    records: Mapping[str, Trial],
    path: Path,
    *,
    check: JSON | None = None,
    verify_output: bool = False,
    exact_defaults: bool = True,
) -> Compiled:
    """Lower with these records, by task key; export to ``path`` and append the metadata.

    If ``path`` ends in .o, .a or .tar, the library is a static one
    (:mod:`tvmtune.library.static_library`). An existing file is replaced atomically. With
    ``verify_output`` the library is first run and compared with ``check``, if :func:`can_check`; raises
    :class:`WrongOutput` if it is wrong. With ``exact_defaults``, tasks without a record get only exact
    implementations.
    """
    network, device = plan.network, plan.device
    if static_library.is_static(path):
        static_library.check_device(path, device)
    phases.report("lowering the network")
    lowered = plan.backend.lower(
        plan.prepared, dict(records), device, exact_defaults=exact_defaults
    )
    attrs = lowered.attrs or {}
    kinds: dict[str, str] = json.loads(str(attrs.get(RECORD, "{}")))
    kernels: dict[str, str] = json.loads(str(attrs.get(KERNELS, "{}")))
    rows = [
        _task_row(task, records.get(task.key), kinds.get(task.key, "default"), exact=exact_defaults)
        | {"kernel": kernels.get(task.key, task.name)}
        for task in plan.tasks
    ]
    described = metadata.describe(
        *(network, device),
        layout=plan.prepared.layout,
        tasks=rows,
        check=check,
        dtypes=_dtypes(plan),
    )
    if MODELLED in attrs:
        described["modelled"] = json.loads(str(attrs[MODELLED]))
    warning = ""
    with replacing(path) as fresh:
        try:
            if static_library.is_static(path):
                objects, library = fresh.with_name("objects.tar"), fresh.with_name("library.so")
                plan.backend.export_lib(lowered, device, objects)
                static_library.link_shared(objects, library, device)
            else:
                library = fresh
                plan.backend.export_lib(lowered, device, library)
            metadata.append(library, described)
            if verify_output and check is not None and can_check(plan):
                phases.report("checking the outputs")
                warning = _verify_output(library, described, network)
            if library != fresh:  # checked as a shared library of the same objects
                static_library.write(objects, described, fresh, device)
        except TvmtuneError as error:
            # The user knows the file by its final name.
            error.args = (str(error).replace(str(fresh), str(path)),)
            raise
    unverified = tuple(
        task.name
        for task in plan.tasks
        if (trial := records.get(task.key)) is not None
        and trial.ok
        and not trial.verified
        and trial.kind != SHIPPED
        and kinds.get(task.key, "default") != "default"
    )
    return Compiled(path, described, unverified=unverified, warning=warning)


def can_check(plan: Plan) -> bool:
    """Whether this machine can run a library of the plan."""
    device = plan.device
    if device.runtime != "cpu" and (device.remote is not None or device.mtriple):
        return False  # its CPU may be like this one's, but its accelerator is elsewhere
    dtypes = _dtypes(plan)
    return not device.absent and cpu_features.can_run(device.target, device.mtriple, dtypes)


def _dtypes(plan: Plan) -> set[str]:
    """The dtypes of what the kernels read and write."""
    return {arg.dtype for task in plan.tasks for arg in task.args}


def _verify_output(path: Path, described: JSON, network: Network) -> str:
    """Run the library and compare its outputs; returns a warning if that says little."""
    result = _run_check(path, described)
    if result.passed:
        return result.warning
    message = f"the output of {path} is {result}: the library is not kept"
    if is_operator(network):
        message = (
            f"operator '{network.source['operator']}' of {network.source['file']} and its reference "
            f"disagree: the output is {result}"
        )
    raise WrongOutput(message)


def _run_check(path: Path, described: JSON) -> verify.CheckResult:
    """Compare the outputs, with a large library's weights in memory only once where possible."""
    check = described["check"]
    if metadata.runtime(described) == "cpu" and path.stat().st_size > embedded_weights.KEPT:
        with contextlib.suppress(WeightInjectionError):
            return verify.run_check(Library.open(path, low_memory=True), check)
    return verify.run_check(Library.open(path), check)


def _task_row(task: Task, trial: Trial | None, record: str, *, exact: bool) -> JSON:
    shipped = trial is not None and trial.kind == SHIPPED
    measured = trial is not None and record == "exact" and trial.ok and not shipped
    if trial is None:
        implementation = (task.untuned_exact if exact else task.untuned).name
    elif record == "default" and not trial.is_default:
        implementation = _fallback(task, trial)
    else:
        implementation = trial.implementation
    return {
        "name": task.name,
        "weight": task.weight,
        "implementation": implementation,
        "record": SHIPPED if shipped and record != "default" else record,
        "latency": trial.latency if trial is not None and measured else None,
        "flop": task.flop,
        "bytes": sum(map(nbytes, task.args)),
    }


def _fallback(task: Task, trial: Trial) -> str:
    """The implementation whose default schedule takes the place of a trial that does not apply: its own
    if that is another program than the direct one."""
    others = [i.name for i in task.implementations if i.workload_key != task.key]
    return trial.implementation if trial.implementation in others else DIRECT


def _other_device(logs: Sequence[Log], device: Device) -> str:
    paths = ", ".join(str(log.path) for log in logs)
    others = {
        f"{d['model'] or d['backend']} with {d['threads']} threads"
        for log in logs
        for d in log.devices().values()
    }
    return (
        f"{paths} holds no measurement of this device ({device.model or device.backend} with "
        f"{device.threads} threads), only of {'; '.join(sorted(others))}. Latencies of another device "
        "or thread count do not apply here: tune on this device, or pass the --target-attr of the "
        "log."
    )
