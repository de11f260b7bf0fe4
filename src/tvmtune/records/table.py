"""Logs as tables: a row for each trial, and one for each task.

A table is a dictionary of columns of equal length, which ``pandas.DataFrame`` and
``polars.DataFrame`` take as it is. Times are in milliseconds unless a column's description says
otherwise; None where the log has no value.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any

from tvmtune.records.best import comparable
from tvmtune.records.log import Log, read_log
from tvmtune.types import JSON, Trial

Table = dict[str, list[Any]]

_MOST_CALLS = 2**31
"""A greater weight is a mistake."""

_HIGHEST_PEAK = 1e12

TRIAL_COLUMNS = {
    "log": "path of the log",
    "run": "number of the run in the log, from 1: each has a header",
    "trial": "number of the trial in the log, from 1",
    "time": "when it was measured, in seconds since the epoch",
    "task": "index of the task",
    "name": "name of the task",
    "key": "exact key of the task",
    "implementation": "direct, winograd, ...",
    "workload": "key of the workload",
    "candidate": "digest of the scheduled module",
    "tuner": "what proposed it",
    "kind": "measured or modelled",
    "device": "identity of the device",
    "ok": "whether it succeeded",
    "latency_ms": "median of its repeats",
    "min_ms": "shortest repeat",
    "std_ms": "standard deviation of its repeats",
    "repeats": "number of its repeats",
    "gflops": "operations of the direct algorithm per nanosecond",
    "stage": "where it failed",
    "message": "why it failed",
    "verified": "whether its output was found right (true) or wrong (false)",
    "slowdown": "of the baseline kernel, if it was measured while the machine was slow",
    "remeasured": "how many of its repeats are from a second measurement",
    "best_ms": "fastest of its task on its device so far",
    "estimate_ms": "latency of the network by the fastest of each task so far",
}
"""The columns of :func:`trials`, with their meaning."""

TASK_COLUMNS = {
    "log": "path of the log",
    "device": "identity of the device",
    "kind": "measured or modelled",
    "task": "index of the task",
    "name": "name of the task",
    "key": "exact key of the task",
    "weight": "how often the network calls it",
    "gflop": "operations of the direct algorithm per call, in 1e9",
    "trials": "number of its trials",
    "failed": "how many of them failed",
    "first_ms": "its first successful trial",
    "best_ms": "its fastest trial",
    "share": "of the estimated latency of the network",
    "gflops": "rate of the fastest, by the operations of the direct algorithm",
    "of_peak": "that rate over the device's peak, if the log has one",
    "implementation": "of the fastest",
    "candidate": "digest of the fastest",
    "verified": "whether the output of the fastest was checked",
}
"""The columns of :func:`tasks`, with their meaning."""


def trials(logs: Path | Log | Sequence[Path | Log]) -> Table:
    """Every trial in the order of the logs; the columns are :data:`TRIAL_COLUMNS`.

    Verdicts and second measurements are merged into the trials. ``estimate_ms`` is None until each task
    of the log that ever succeeded on that device has; a log of several networks has none.
    """
    table: Table = {name: [] for name in TRIAL_COLUMNS}
    columns = list(table.values())
    for log in _opened(logs):
        run = 0
        progress: dict[tuple[str, str], Progress] = {}
        for number, trial in enumerate(log.trials):
            while run < len(log.starts) and log.starts[run] <= number:
                run += 1
            place = trial.device, trial.kind
            if place not in progress:
                progress[place] = Progress(log, *place)
            so_far = map(_ms, progress[place].after(trial))
            row = (*_row(log, run, number, trial), *so_far)
            for column, value in zip(columns, row, strict=True):
                column.append(value)
    return table


def tasks(logs: Path | Log | Sequence[Path | Log]) -> Table:
    """The tasks of each log, device and kind; the columns are :data:`TASK_COLUMNS`."""
    table: Table = {name: [] for name in TASK_COLUMNS}
    for log in _opened(logs):
        for device, kind in sorted({(t.device, t.kind) for t in log.trials}):
            for row in _task_rows(log, device, kind):
                for column, value in zip(table.values(), row, strict=True):
                    column.append(value)
    return table


class Progress:
    """The fastest trial of each task of one device and kind, trial by trial."""

    def __init__(self, log: Log, device: str, kind: str) -> None:
        self._weights = {key: _weight(line) for key, line in log.tasks.items()}
        self._best: dict[str, float] = {}
        self._missing = {t.task for t in comparable(log.trials, device, kind) if t.ok}
        self._known = is_one_network(log) and all(self._weights.get(t) for t in self._missing)
        self._sum: float | None = None

    def after(self, trial: Trial) -> tuple[float, float]:
        """The best latency of the trial's task and the estimate after it, in seconds; infinite while
        there is none."""
        before = self._best.get(trial.task, inf)
        if trial.latency < before:
            self._best[trial.task] = trial.latency
            self._missing.discard(trial.task)
            self._sum = None
        if self._sum is None:
            self._sum = inf
            if self._known and not self._missing:
                self._sum = sum(self._weights[t] * best for t, best in self._best.items())
        return self._best.get(trial.task, inf), self._sum


def is_one_network(log: Log) -> bool:
    """Whether all runs of the log tuned the same network, so that its tasks add up to one."""
    return len({h["network"].get("structure_hash") for h in log.headers}) == 1


def peak(log: Log, device: str) -> float | None:
    """The highest peak rate in GFLOPS that the runs on a device recorded; None if none did."""
    headers = (h for h in log.headers if h["device"]["identity"] == device)
    return max((rate for h in headers if (rate := peak_of(h))), default=None)


def peak_of(header: JSON) -> float | None:
    """The peak rate in GFLOPS that a run recorded; None if it recorded none, or nonsense."""
    rate: Any = header.get("peak_gflops")
    return rate if type(rate) in (int, float) and 0 < rate < _HIGHEST_PEAK else None


def _opened(logs: Path | Log | Sequence[Path | Log]) -> Iterator[Log]:
    for log in [logs] if isinstance(logs, (Path, Log)) else logs:
        yield read_log(log) if isinstance(log, Path) else log


def _row(log: Log, run: int, number: int, trial: Trial) -> tuple[Any, ...]:
    line = log.tasks.get(trial.task, {})
    seconds, error = trial.seconds, trial.error or {}
    rate = line.get("flop", 0.0) / trial.latency / 1e9
    return (
        str(log.path),
        run,
        number + 1,
        trial.time,
        line.get("index"),
        line.get("name"),
        trial.task,
        trial.implementation,
        trial.workload,
        trial.candidate,
        trial.tuner,
        trial.kind,
        trial.device,
        trial.ok,
        _ms(trial.latency),
        _ms(min(seconds)) if trial.ok else None,
        _spread(seconds) if trial.ok else None,
        len(seconds),
        rate or None,
        error.get("stage"),
        error.get("message"),
        trial.verified,
        trial.extra.get("drift"),
        trial.extra.get("remeasured", 0),
    )


def _task_rows(log: Log, device: str, kind: str) -> Iterator[tuple[Any, ...]]:
    by_task: dict[str, list[Trial]] = {}
    for trial in comparable(log.trials, device, kind):
        by_task.setdefault(trial.task, []).append(trial)
    best = {task: min(of, key=lambda t: t.latency) for task, of in by_task.items()}
    weights = {task: _weight(log.tasks.get(task, {})) for task in by_task}
    total = 0.0
    if is_one_network(log):
        total = sum(weights[t] * best[t].latency for t in best if best[t].ok)
    top = peak(log, device)
    order = sorted(by_task, key=lambda t: (log.tasks.get(t, {}).get("index", inf), t))
    for task in order:
        line: JSON = log.tasks.get(task, {})
        of, fastest = by_task[task], best[task]
        flop = line.get("flop")
        rate = flop / fastest.latency / 1e9 if flop and fastest.ok else None
        share = None
        if fastest.ok and weights[task] and total:
            share = weights[task] * fastest.latency / total
        yield (
            str(log.path),
            device,
            kind,
            line.get("index"),
            line.get("name"),
            task,
            weights[task] or None,
            flop / 1e9 if flop else None,
            len(of),
            sum(not t.ok for t in of),
            next((_ms(t.latency) for t in of if t.ok), None),
            _ms(fastest.latency),
            share,
            rate,
            rate / top if rate and top else None,
            fastest.implementation if fastest.ok else None,
            fastest.candidate if fastest.ok else None,
            fastest.verified if fastest.ok else None,
        )


def _weight(line: JSON) -> int:
    """How often the network calls a task; 0 if its line does not say so."""
    weight: int = line.get("weight") or 0
    return weight if 0 < weight < _MOST_CALLS else 0


def _ms(seconds: float) -> float | None:
    value = seconds * 1e3
    return value if value < inf else None


def _spread(seconds: Sequence[float]) -> float | None:
    """Standard deviation in milliseconds; None for a single repeat, and where it overflows."""
    if len(seconds) < 2:
        return None
    with contextlib.suppress(OverflowError):
        return _ms(statistics.stdev(seconds))
    return None
