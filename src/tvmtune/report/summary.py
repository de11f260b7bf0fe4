"""What a page says about the trials of one log on one device.

Everything comes from the log; what it does not hold is None or an empty list, and the page leaves
it out. Verdicts and second measurements are merged into the trials, so curves show what is known now,
which may differ from what the session displayed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, inf, log
from typing import Any

from tvmtune.records import table
from tvmtune.records.best import best_of, comparable
from tvmtune.records.log import Log
from tvmtune.report.thinning import extremes, ranges, thinned
from tvmtune.types import DEFAULT, JSON, SHIPPED, TRANSFER, Trial, product

CURVE = 600
"""Points of a curve at most."""
BINS = 60
"""Groups of consecutive trials at most."""
_LARGEST = 2**60
"""Bytes of an argument; more are a mistake."""

Row = dict[str, Any]


@dataclass
class Run:
    """One run of ``tvmtune tune`` on the log: a header and the trials after it."""

    number: int
    header: JSON
    trials: int
    started: float | None
    """Seconds since the epoch."""
    seconds: float
    """From its start to its last trial."""


@dataclass
class TaskSummary:
    """A task and its trials on one device."""

    row: Row
    """Its row of :func:`tvmtune.records.table.tasks`."""
    line: JSON
    """Its line in the log; empty if there is none."""
    best: Trial | None
    """The fastest trial."""
    shipped: Trial | None
    """The trial that compile takes: the fastest whose output was found right, if any was."""
    implementations: list[Row]
    """For each implementation: name, trials, failed, best_ms, ratio to the task's best."""
    points: list[Row]
    """Latency by number of the trial, in groups if there are many."""
    failures: list[Row]
    args: list[str]
    """Shapes and dtypes of its inputs, then its output."""
    bytes: int | None
    """Of all of them."""

    @property
    def anchor(self) -> str:
        return f"task-{self.row['key']}"


@dataclass
class Section:
    """One log, device and kind."""

    log: Log
    device: JSON
    kind: str
    headers: list[JSON]
    distilled: bool
    trials: list[Trial]
    runs: list[Run]
    peak: float | None
    """Float32 GFLOPS."""
    estimate_ms: float | None
    first_estimate_ms: float | None
    """The first estimate that includes all tasks."""
    seconds: float | None
    """Time spent tuning, without pauses between runs."""
    curve: list[Row]
    """Estimate at each improvement: trial, seconds, estimate_ms."""
    tasks: list[TaskSummary]
    implementations: list[Row]
    failures: list[Row]
    outcomes: list[Row]
    """Number of trials by outcome, in groups of consecutive trials."""
    drift: list[Row]
    slow: int
    """Trials measured while the machine was slow."""
    notes: list[str] = field(default_factory=list)

    @property
    def network(self) -> JSON:
        return dict(self.headers[0]["network"]) if self.headers else {}

    @property
    def failed(self) -> int:
        return sum(not t.ok for t in self.trials)

    @property
    def name(self) -> str:
        names = dict.fromkeys(str(h["network"].get("name", "?")) for h in self.headers)
        return ", ".join(names)

    @property
    def model(self) -> str:
        return str(self.device["model"] or self.device["backend"])


def sections(log_: Log) -> list[Section]:
    """One for each device and kind in the log; one without trials if there are none."""
    found = dict.fromkeys((t.device, t.kind) for t in log_.trials)
    if not found:
        found = {(log_.headers[-1]["device"]["identity"], "measured"): None}
    return [_section(log_, device, kind) for device, kind in found]


def _section(source: Log, device: str, kind: str) -> Section:
    headers = [h for h in source.headers if h["device"]["identity"] == device]
    trials = comparable(source.trials, device, kind)
    distilled = all(h.get("distilled") is True for h in headers)
    runs, run_of = _runs(source, device, kind)
    curve = [] if distilled else _curve(source, device, kind, trials, run_of, runs)
    known = [p["estimate_ms"] for p in curve] or _distilled_estimate(source, device, kind)
    summaries = _tasks(source, device, kind, trials)
    timed = [run for run in runs if run.started is not None]
    return Section(
        log=source,
        device=headers[-1]["device"],
        kind=kind,
        headers=headers,
        distilled=distilled,
        trials=trials,
        runs=runs,
        peak=table.peak(source, device),
        estimate_ms=known[-1] if known else None,
        first_estimate_ms=known[0] if curve else None,
        seconds=sum(r.seconds for r in timed) if timed and not distilled else None,
        curve=thinned(curve, CURVE),
        tasks=summaries,
        implementations=_implementations(summaries),
        failures=_failures(source, trials),
        outcomes=[] if distilled else _outcomes(trials),
        drift=_drift(source, device),
        slow=sum("drift" in t.extra for t in trials),
        notes=_notes(source, summaries),
    )


def _runs(source: Log, device: str, kind: str) -> tuple[list[Run], list[int]]:
    """The runs on a device, and for each of its trials the position of its run among them."""
    runs: list[Run] = []
    run_of: list[int] = []
    ends = [*source.starts[1:], len(source.trials)]
    for number, (header, start, end) in enumerate(
        zip(source.headers, source.starts, ends, strict=True)
    ):
        if header["device"]["identity"] != device:
            continue
        trials = comparable(source.trials[start:end], device, kind)
        started = header.get("started")
        seconds = 0.0
        if started is not None:
            last = max((t.time for t in trials if t.tuner != TRANSFER), default=0.0)
            seconds = max(0.0, last - started)
        runs.append(Run(number + 1, header, len(trials), started, seconds))
        run_of += [len(runs) - 1] * len(trials)
    # A trial may name a device of another header.
    missing = len(comparable(source.trials, device, kind)) - len(run_of)
    return runs, run_of + [len(runs) - 1] * missing


def _curve(
    source: Log,
    device: str,
    kind: str,
    trials: Sequence[Trial],
    run_of: Sequence[int],
    runs: Sequence[Run],
) -> list[Row]:
    progress = table.Progress(source, device, kind)
    before = [sum(r.seconds for r in runs[:n]) for n in range(len(runs))]
    timed = all(run.started is not None for run in runs)
    points: list[Row] = []
    last, clock = inf, 0.0
    for number, (trial, at) in enumerate(zip(trials, run_of, strict=True), 1):
        estimate = progress.after(trial)[1]
        run = runs[at]
        if run.started is not None:
            clock = max(clock, before[at] + min(max(0.0, trial.time - run.started), run.seconds))
        end = number == len(trials)
        if estimate < last or (end and estimate < inf):
            seconds = clock if timed else None
            points.append({"trial": number, "seconds": seconds, "estimate_ms": estimate * 1e3})
        last = min(last, estimate)
    return points


def _distilled_estimate(source: Log, device: str, kind: str) -> list[float]:
    progress = table.Progress(source, device, kind)
    after = [progress.after(t)[1] for t in comparable(source.trials, device, kind)]
    return [after[-1] * 1e3] if after and after[-1] < inf else []


def _tasks(source: Log, device: str, kind: str, trials: Sequence[Trial]) -> list[TaskSummary]:
    columns = table.tasks(source)
    rows = [
        row
        for row in (
            dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)
        )
        if row["device"] == device and row["kind"] == kind
    ]
    by_task: dict[str, list[Trial]] = {}
    for trial in trials:
        by_task.setdefault(trial.task, []).append(trial)
    taken = best_of(trials)
    return [_task(source, row, by_task[row["key"]], taken.get(row["key"])) for row in rows]


def _task(source: Log, row: Row, trials: list[Trial], taken: Trial | None) -> TaskSummary:
    line = source.tasks.get(row["key"], {})
    best = min(trials, key=lambda t: t.latency)
    args = _args(line)
    return TaskSummary(
        row=row,
        line=line,
        best=best if best.ok else None,
        shipped=taken,
        implementations=_implementations_of(trials, best.latency),
        points=_points(trials),
        failures=_failures(source, trials),
        args=[text for text, _ in args] if args else [],
        bytes=sum(size for _, size in args) if args else None,
    )


def _implementations_of(trials: Sequence[Trial], best: float) -> list[Row]:
    by_name: dict[str, list[Trial]] = {}
    for trial in trials:
        by_name.setdefault(trial.implementation, []).append(trial)
    rows = []
    for name, of in by_name.items():
        fastest = min(t.latency for t in of)
        rows.append(
            {
                "name": name,
                "trials": len(of),
                "failed": sum(not t.ok for t in of),
                "best_ms": fastest * 1e3 if fastest < inf else None,
                "ratio": fastest / best if fastest < inf else None,
            }
        )
    return sorted(rows, key=lambda r: (r["ratio"] is None, r["ratio"], r["name"]))


def _points(trials: Sequence[Trial]) -> list[Row]:
    """Latencies by number of the trial within the task, per implementation, and the best so far."""
    points: list[Row] = []
    names = list(dict.fromkeys(t.implementation for t in trials))
    best, so_far = inf, []
    for trial in trials:
        best = min(best, trial.latency)
        so_far.append(best)
    for span in ranges(len(trials), 2 * BINS):
        for name in names:
            group = [trials[n] for n in span if trials[n].implementation == name]
            found = extremes([t.latency * 1e3 if t.ok else None for t in group])
            if found:
                points.append({"trial": span[-1] + 1, "implementation": name, **found})
        if so_far[span[-1]] < inf:
            points.append({"trial": span[-1] + 1, "best_ms": so_far[span[-1]] * 1e3})
    return points


def _args(line: JSON) -> list[tuple[str, int]] | None:
    """Description and bytes of each argument; None if the log does not describe them."""
    found = []
    for entry in line.get("args", ()):
        try:
            shape, dtype = entry
            size = product(shape) * _bits(dtype) // 8
            if not 0 <= size < _LARGEST:
                return None
            found.append((f"{'x'.join(map(str, shape)) or 'scalar'} {dtype}", size))
        except (AttributeError, OverflowError, TypeError, ValueError):
            return None
    return found or None


def _bits(dtype: str) -> int:
    """Bits of an element; raises ValueError for an unknown dtype."""
    if dtype == "bool":
        return 8
    digits = dtype.lstrip("abcdefghijklmnopqrstuvwxyz")
    return int(digits.partition("_")[0].partition("x")[0])


def _implementations(tasks: Sequence[TaskSummary]) -> list[Row]:
    """How each implementation did: tasks tried and won, trials, and how far from the best it was."""
    names = dict.fromkeys(i["name"] for task in tasks for i in task.implementations)
    rows = []
    for name in names:
        of = [i for task in tasks for i in task.implementations if i["name"] == name]
        ratios = [i["ratio"] for i in of if i["ratio"]]
        rows.append(
            {
                "name": name,
                "tasks": len(of),
                "won": sum(t.best is not None and t.best.implementation == name for t in tasks),
                "trials": sum(i["trials"] for i in of),
                "failed": sum(i["failed"] for i in of),
                "ratio": exp(sum(map(log, ratios)) / len(ratios)) if ratios else None,
            }
        )
    return sorted(rows, key=lambda r: (-r["won"], -r["trials"], r["name"]))


def _failures(source: Log, trials: Sequence[Trial]) -> list[Row]:
    """Failed trials by stage, the most frequent first, with the first message of each."""
    stages: dict[str, Row] = {}
    for trial in trials:
        if trial.ok:
            continue
        error = trial.error or {"stage": "wrong-answer", "message": "its output was wrong"}
        row = stages.setdefault(
            error["stage"],
            {
                "stage": error["stage"],
                "count": 0,
                "message": error["message"],
                "task": source.tasks.get(trial.task, {}).get("name", trial.task),
                "implementation": trial.implementation,
            },
        )
        row["count"] += 1
    return sorted(stages.values(), key=lambda r: -r["count"])


def _outcomes(trials: Sequence[Trial]) -> list[Row]:
    rows: list[Row] = []
    for span in ranges(len(trials), BINS):
        group = [trials[n] for n in span]
        counts = Counter(
            "ok" if t.ok else (t.error or {}).get("stage", "wrong-answer") for t in group
        )
        first, last = span[0], span[-1] + 1
        rows += [
            {"first": first, "last": last, "outcome": name, "trials": count}
            for name, count in counts.items()
        ]
    return rows


def _drift(source: Log, device: str) -> list[Row]:
    """Readings of the baseline kernel relative to the fastest of their run, at the time since the start
    of the first run."""
    readings = [r for r in source.drift if source.headers[r.run]["device"]["identity"] == device]
    if not readings:
        return []
    lowest: dict[int, float] = {}
    for reading in readings:
        lowest[reading.run] = min(lowest.get(reading.run, inf), reading.ratio)
    begin = {r: source.headers[r].get("started") for r in lowest}
    rows = []
    before, run, last = 0.0, readings[0].run, 0.0
    for reading in readings:
        if reading.run != run:
            before, run, last = before + last, reading.run, 0.0
        start = begin[reading.run]
        if start is None or lowest[reading.run] <= 0:
            continue
        last = max(last, reading.time - start)
        ratio = reading.ratio / lowest[reading.run]
        rows.append({"run": run + 1, "seconds": before + reading.time - start, "ratio": ratio})
    return thinned(rows, CURVE)


def _notes(source: Log, tasks: Sequence[TaskSummary]) -> list[str]:
    notes = []
    if source.torn:
        notes.append(
            "The last line of the log is incomplete, as a run that goes on or was killed leaves it."
        )
    if not table.is_one_network(source):
        notes.append("The log holds several networks, so there is no estimate for the whole.")
    without = [str(t.row["name"] or t.row["key"]) for t in tasks if t.best is None]
    if without:
        notes.append(f"No trial succeeded for {', '.join(without)}: the estimate lacks them.")
    return notes


def proposers(trials: Sequence[Trial]) -> list[Row]:
    """Number of trials by what proposed them."""
    words = {DEFAULT: "default schedules", TRANSFER: "transferred", SHIPPED: "shipped records"}
    counts = Counter(t.tuner for t in trials if t.tuner)
    return [{"name": words.get(n, n), "trials": c} for n, c in counts.most_common()]
