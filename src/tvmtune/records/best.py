"""Selects the best trials of each task; writes distilled logs that contain only those."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tvmtune import atomic_write, checks
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.records import schema
from tvmtune.records.log import Log, LogWriter, is_empty, read_log, refuse_compressed
from tvmtune.types import JSON, Trial


def comparable(trials: Iterable[Trial], device: str, kind: str = "measured") -> list[Trial]:
    """The trials of one device (by identity) and kind, ``measured`` or ``modelled``."""
    return [t for t in trials if t.device == device and t.kind == kind]


def ranked(trials: Iterable[Trial]) -> dict[str, list[Trial]]:
    """The successful trials of each task, fastest first, each candidate once."""
    trials = list(trials)
    # Another log may hold a copy of a candidate that was found wrong.
    wrong = {(t.device, t.workload, t.candidate) for t in trials if t.verified is False}
    by_task: dict[str, dict[str, Trial]] = {}
    for trial in trials:
        if not trial.ok or (trial.device, trial.workload, trial.candidate) in wrong:
            continue
        slot = by_task.setdefault(trial.task, {})
        key = f"{trial.implementation}/{trial.candidate}"
        if key not in slot or trial.latency < slot[key].latency:
            slot[key] = trial
    return {t: sorted(s.values(), key=lambda x: x.latency) for t, s in by_task.items()}


def best_of(trials: Iterable[Trial]) -> dict[str, Trial]:
    """The trial to ship for each task: verified ones take precedence over unchecked ones, which are
    taken only where no output could be checked."""
    return {
        task: next((t for t in order if t.verified), order[0])
        for task, order in ranked(trials).items()
    }


@dataclass(frozen=True)
class Selection:
    """The best records of one device and kind."""

    header: JSON
    """The first header of that device."""
    tasks: dict[str, JSON]
    """Task lines by key; one may be missing."""
    trials: dict[str, list[Trial]]
    """By task, the one to ship comes first."""


def select(logs: Sequence[Log], top: int = 1) -> list[Selection]:
    """The best ``top`` records per task, for each device and kind in the logs.

    Raises :class:`TvmtuneError` if no trial is valid, and UsageError if ``top`` is not positive.
    """
    checks.at_least("--top", top, 1)
    selections = []
    for identity, kind in sorted({(t.device, t.kind) for g in logs for t in g.trials}):
        order = ranked(t for g in logs for t in comparable(g.trials, identity, kind))
        if not order:
            continue
        source, header = next(
            (g, h) for g in logs for h in g.headers if h["device"]["identity"] == identity
        )
        lines = {k: v for g in (*logs, source) for k, v in g.tasks.items()}
        chosen = {}
        for task, trials in order.items():
            first = best_of(trials)[task]
            chosen[task] = [first, *(t for t in trials if t is not first)][:top]
        selections.append(Selection(header, {k: lines[k] for k in chosen if k in lines}, chosen))
    if not selections:
        paths = ", ".join(str(log.path) for log in logs)
        raise TvmtuneError(f"{paths} holds no valid trial: there is nothing to distill")
    return selections


def counts(logs: Sequence[Log], selections: Sequence[Selection]) -> dict[str, int]:
    """Numbers of trials read, records kept, tasks and devices."""
    return {
        "trials": sum(len(g.trials) for g in logs),
        "kept": sum(len(trials) for s in selections for trials in s.trials.values()),
        "tasks": len({task for s in selections for task in s.trials}),
        "devices": len({s.header["device"]["identity"] for s in selections}),
    }


def distill(
    logs: Sequence[Log], output: Path, *, top: int = 1, force: bool = False
) -> dict[str, int]:
    """Write the best ``top`` records per task and device of several logs to a new log.

    Atomic: the file appears complete or not at all. Returns :func:`counts`. Raises UsageError if
    ``output`` exists and is not a distilled log, unless ``force`` is set.
    """
    refuse_compressed(output)
    selections = select(logs, top)
    for log in logs:
        if output.exists() and output.samefile(log.path):
            raise UsageError(f"{output} is also an input: choose another -o")
    with contextlib.ExitStack() as held:
        if output.exists():
            held.enter_context(LogWriter(output))  # raises while a session writes to it
            if not (force or is_empty(output) or _is_distilled(output)):
                raise UsageError(
                    f"{output} exists and is not a distilled log: choose another -o, or replace it "
                    "with --force"
                )
        _write(selections, output)
    return counts(logs, selections)


def _write(selections: Sequence[Selection], output: Path) -> None:
    with atomic_write.replacing(output) as temporary, LogWriter(temporary) as writer:
        writer.path = output  # for error messages
        for selection in selections:
            writer.write(schema.copied(selection.header, format=schema.FORMAT, distilled=True))
            for task, trials in selection.trials.items():
                if task in selection.tasks:
                    writer.write(schema.copied(selection.tasks[task]))
                for trial in trials:
                    writer.trial(trial)


def _is_distilled(path: Path) -> bool:
    try:
        return all(header.get("distilled") is True for header in read_log(path).headers)
    except TvmtuneError:
        return False
