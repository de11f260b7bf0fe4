"""From a prepared network and its records to a library with metadata."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tvmtune.deploy import image, metadata, verify
from tvmtune.deploy.atomic import replacing
from tvmtune.deploy.library import Library
from tvmtune.deploy.light import Unsupplied
from tvmtune.errors import TvmtuneError
from tvmtune.graph.lower import MODELLED, RECORD
from tvmtune.host import Backend
from tvmtune.records.best import best_of, comparable
from tvmtune.records.log import Log, module_of
from tvmtune.types import JSON, Device, Network, Prepared, Task, Trial, is_operator


class WrongOutput(TvmtuneError):
    """A library computes something else than the network's reference."""


@dataclass(frozen=True)
class Compiled:
    """A library and what went into it."""

    path: Path
    metadata: JSON
    given_up: int = 0
    """How many tasks got a kernel that rounds less than their quickest, for the sake of the whole."""

    @property
    def counts(self) -> dict[str, int]:
        """How many tasks found a record under their exact key, under their anchor key, or none."""
        return {k: self.metadata["tasks"][k] for k in metadata.RECORD_KINDS}


def choose_records(
    logs: Sequence[Log], tasks: Sequence[Task], device: Device, *, exact: Collection[str] = ()
) -> dict[str, Trial]:
    """The trial to use for each task (by key): its own best, else the best of its anchor block.

    The tasks whose keys are in ``exact`` get none that rounds otherwise than the direct algorithm.
    Only measurements of this very device count; raises :class:`TvmtuneError` if the logs hold some
    and none is of this device.
    """
    trials = [t for log in logs for t in comparable(log.trials, device.identity())]
    modelled = [t for log in logs for t in comparable(log.trials, device.identity(), "modelled")]
    if not trials and not modelled and any(log.trials for log in logs):
        raise TvmtuneError(_other_device(logs, device))
    rough = {(t.key, i.name) for t in tasks for i in t.implementations if not i.exact}
    best = best_of(
        t
        for t in trials or modelled
        if t.task not in exact or (t.task, t.implementation) not in rough
    )
    lines = {key: line for log in logs for key, line in log.tasks.items()}
    # The schedules of other algorithms reach into the epilogue: only those of the direct workload,
    # whose key is the task's, fit another fusion.
    direct = best_of(t for t in trials or modelled if t.workload == t.task)
    by_anchor: dict[str, list[Trial]] = {}
    for key, trial in direct.items():
        line = lines.get(key)
        if line is not None:
            trial.extra.setdefault("module", module_of(line, trial.implementation))
            by_anchor.setdefault(line["anchor"], []).append(trial)
    chosen = {}
    for task in tasks:
        names = {i.name for i in task.implementations}
        donors = [t for t in by_anchor.get(task.anchor_key, ()) if t.implementation in names]
        if task.key in best:
            chosen[task.key] = best[task.key]
        elif donors and task.key not in lines:
            chosen[task.key] = min(donors, key=lambda t: t.latency)
    if best and not chosen and not exact:
        networks = sorted({str(h["network"].get("name", "?")) for g in logs for h in g.headers})
        raise TvmtuneError(
            f"{', '.join(str(log.path) for log in logs)} is the log of another network "
            f"({', '.join(networks)}): none of its records fits a task of this one."
        )
    return chosen


def compile_library(
    backend: Backend,
    prepared: Prepared,
    tasks: Sequence[Task],
    chosen: Mapping[str, Trial],
    device: Device,
    path: Path,
    *,
    check: JSON | None = None,
    verify_it: bool = False,
) -> Compiled:
    """Lower, export to ``path`` and append the metadata; an existing file is replaced as a whole.

    With ``verify_it`` the library is run and compared with ``check`` first; raises
    :class:`WrongOutput` if it is wrong.
    """
    lowered = backend.lower(prepared, dict(chosen), device)
    how: dict[str, str] = json.loads(str((lowered.attrs or {}).get(RECORD, "{}")))
    rows = [_row(task, chosen.get(task.key), how.get(task.key, "default")) for task in tasks]
    described = metadata.describe(
        prepared.network, device, layout=prepared.layout, tasks=rows, check=check
    )
    if MODELLED in (lowered.attrs or {}):
        described["modelled"] = json.loads(str(lowered.attrs[MODELLED]))
    with replacing(path) as fresh:
        try:
            backend.export_lib(lowered, device, fresh)
            metadata.append(fresh, described)
            if verify_it and check is not None and not device.absent:
                _verify(fresh, described, prepared.network)
        except TvmtuneError as error:
            # whoever reads it asked for ``path``
            error.args = (str(error).replace(str(fresh), str(path)),)
            raise
    return Compiled(path, described)


def reference_check(prepared: Prepared, seed: int = 0) -> JSON:
    """Reference outputs of the network, computed without TVM, for :mod:`tvmtune.deploy.verify`."""
    return verify.make_check(prepared.network, seed)


def _verify(path: Path, described: JSON, network: Network) -> None:
    """Run the library and compare its outputs; one for another machine cannot be, and is not."""
    device = Device.from_json(described["device"])
    if device.runtime != "cpu" and (device.remote is not None or device.mtriple):
        return  # its CPU may be as this one's, but its accelerator is elsewhere
    try:
        metadata.check_runnable(path, described)
    except TvmtuneError:
        return
    verdict = _verdict(path, described)
    if verdict.passed:
        return
    message = f"the output of {path} is {verdict}: it is not kept"
    if is_operator(network):
        message = (
            f"operator '{network.source['operator']}' of {network.source['file']} and its reference "
            f"disagree: the output is {verdict}"
        )
    raise WrongOutput(message)


def _verdict(path: Path, described: JSON) -> verify.CheckResult:
    check = described["check"]
    if metadata.runtime(described) == "cpu" and path.stat().st_size > image.KEPT:
        with contextlib.suppress(Unsupplied):
            return verify.run_check(Library.open(path, light=True), check)
    return verify.run_check(Library.open(path), check)


def _row(task: Task, trial: Trial | None, record: str) -> JSON:
    measured = trial is not None and record == "exact" and trial.ok
    return {
        "name": task.name,
        "weight": task.weight,
        "implementation": trial.implementation if trial and record != "default" else "direct",
        "record": record,
        "latency": trial.latency if trial is not None and measured else None,
        "flop": task.flop,
    }


def _other_device(logs: Sequence[Log], device: Device) -> str:
    paths = ", ".join(str(log.path) for log in logs)
    others = {
        f"{d['model'] or d['backend']} with {d['threads']} threads"
        for log in logs
        for d in log.devices().values()
    }
    return (
        f"{paths} holds no measurement of this device ({device.model or device.backend} with "
        f"{device.threads} threads), only of {'; '.join(sorted(others))}. Times of another device or "
        "thread count say nothing about this one: tune here, or give the --target-attr that it was "
        "tuned with."
    )
