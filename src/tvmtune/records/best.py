"""Which trial of each task is the best, and the distilled log that holds only those."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.records.log import Log, LogWriter, sync_directory
from tvmtune.types import Trial


def comparable(trials: Iterable[Trial], device: str, kind: str = "measured") -> list[Trial]:
    """Those measured on this very device (threads included) and not modelled, or the reverse."""
    return [t for t in trials if t.device == device and t.kind == kind]


def ranked(trials: Iterable[Trial]) -> dict[str, list[Trial]]:
    """The successful trials of each task, the quickest first, each candidate once."""
    by_task: dict[str, dict[str, Trial]] = {}
    for trial in trials:
        if not trial.ok:
            continue
        slot = by_task.setdefault(trial.task, {})
        key = f"{trial.implementation}/{trial.candidate}"
        if key not in slot or trial.latency < slot[key].latency:
            slot[key] = trial
    return {t: sorted(s.values(), key=lambda x: x.latency) for t, s in by_task.items()}


def best_of(trials: Iterable[Trial]) -> dict[str, Trial]:
    """The trial to ship for each task: a verified one before any that nobody has checked."""
    return {
        task: next((t for t in order if t.verified), order[0])
        for task, order in ranked(trials).items()
    }


def distill(logs: Sequence[Log], output: Path, *, top: int = 1) -> dict[str, int]:
    """Write the best ``top`` records per task and device of several logs as a log of its own.

    The file appears whole or not at all. Returns counts: trials read, records kept, tasks, devices.
    """
    if top < 1:
        raise TvmtuneError("--top needs a number of at least 1.")
    for log in logs:
        if output.exists() and output.samefile(log.path):
            raise UsageError(f"{output} is one of the logs that are read: choose another -o.")
    if output.exists():
        LogWriter(output).close()  # refused while a session writes to it
    handle, name = _temporary(output)
    os.close(handle)
    kept = 0
    devices: set[str] = set()
    tasks: set[str] = set()
    try:
        with LogWriter(Path(name)) as writer:
            writer.path = output  # what a message should name
            for identity, kind in sorted({(t.device, t.kind) for g in logs for t in g.trials}):
                group = [t for g in logs for t in comparable(g.trials, identity, kind)]
                order = ranked(group)
                if not order:
                    continue
                devices.add(identity)
                source, header = next(
                    (g, h) for g in logs for h in g.headers if h["device"]["identity"] == identity
                )
                fields = {k: v for k, v in header.items() if k != "type"}
                writer.append("header", {**fields, "distilled": True})
                lines = {k: v for g in (*logs, source) for k, v in g.tasks.items()}
                for task, trials in order.items():
                    tasks.add(task)
                    if task in lines:
                        writer.append("task", {k: v for k, v in lines[task].items() if k != "type"})
                    first = best_of(trials)[task]
                    chosen = [first, *(t for t in trials if t is not first)][:top]
                    for trial in chosen:
                        writer.trial(trial)
                        kept += 1
        if not kept:
            paths = ", ".join(str(log.path) for log in logs)
            raise TvmtuneError(f"{paths} holds no valid trial: there is nothing to distill.")
        Path(name).chmod(0o644)
        Path(name).replace(output)
        sync_directory(output.parent)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    read = sum(len(g.trials) for g in logs)
    return {"trials": read, "kept": kept, "tasks": len(tasks), "devices": len(devices)}


def _temporary(output: Path) -> tuple[int, str]:
    try:
        return tempfile.mkstemp(prefix=f".{output.name}.", dir=output.parent)
    except OSError as error:
        raise TvmtuneError(f"cannot write {output}: {error.strerror}.") from None
