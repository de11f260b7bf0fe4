"""Shared by the search benchmarks: tuning runs and their convergence over time.

A run is a list of candidates with the time at which each was measured. Runs are compared by their
incumbents over time, which are timed again after all runs: in turns, by one runner, so that neither
luck nor different ways of timing decide.
"""

from __future__ import annotations

import bisect
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tvmtune import api
from tvmtune.measure.measurer import Measurer
from tvmtune.records.log import read_log
from tvmtune.types import Implementation, Timing

BATCH = 32
"""Candidates per batch of the second timing."""


@dataclass
class Found:
    """One measured candidate."""

    seconds: float
    """Time of the result since the run began."""
    trial: int
    """Trials that the run had done by then."""
    task: str
    implementation: Implementation
    trace: Any
    latency: float
    """Seconds, as the run measured it."""
    again: list[float] = field(default_factory=list)
    """Seconds in the second timing: one median per round."""

    @property
    def key(self) -> str:
        return f"{self.implementation.workload_key}/{json.dumps(self.trace)}"

    @property
    def confirmed(self) -> float:
        """Median seconds of the second timing; infinity if it failed."""
        return statistics.median(self.again) if self.again else float("inf")


@dataclass
class Run:
    """The results and the cost of one tuning session."""

    name: str
    found: list[Found]
    trials: int
    seconds: float
    """Wall time of the whole process."""

    @property
    def rate(self) -> float:
        """Trials per minute, including the start of the process."""
        return 60 * self.trials / self.seconds

    def incumbents(self) -> list[Found]:
        """Candidates that were the best of their task when they were measured."""
        best: dict[str, float] = {}
        chosen = []
        for found in sorted(self.found, key=lambda f: f.seconds):
            if found.latency < best.get(found.task, float("inf")):
                best[found.task] = found.latency
                chosen.append(found)
        return chosen

    def curve(self, plan: api.Plan) -> list[Point]:
        """The weighted latency over time, once every task has a candidate, with incumbents' second
        timings."""
        latencies: dict[str, float] = {}
        points = []
        for found in self.incumbents():
            latencies[found.task] = found.confirmed
            if len(latencies) == len(plan.tasks):
                weighted = sum(task.weight * latencies[task.key] for task in plan.tasks)
                points.append(Point(found.seconds, found.trial, weighted))
        return points

    def reported(self, plan: api.Plan) -> float:
        """The final weighted latency in seconds by the run's own measurements."""
        best = {found.task: found.latency for found in self.incumbents()}
        return sum(task.weight * best.get(task.key, float("inf")) for task in plan.tasks)


@dataclass(frozen=True)
class Point:
    seconds: float
    trials: int
    latency: float
    """Weighted, in seconds."""


def reached(curve: Sequence[Point], latency: float) -> Point | None:
    """The first point of the curve with at most that latency; None if there is none."""
    return next((point for point in curve if point.latency <= latency), None)


def plan_of(network: str) -> api.Plan:
    return api.plan(api.load(network), "cpu")


def tune(network: str, log: Path, trials: int, *more: str) -> tuple[float, float]:
    """Run ``tvmtune tune`` in a separate process; returns as :func:`process` does."""
    words = ["tune", "--network", network, "--trials", str(trials), "--log", str(log), *more]
    words += ["--no-shipped-records"]  # how the search itself converges
    return process([sys.executable, "-m", "tvmtune.cli", *words, "--no-compile"])


def process(command: Sequence[str]) -> tuple[float, float]:
    """Run a command; returns when it began, in seconds since the epoch, and the seconds it took."""
    began = time.time()
    subprocess.run(command, check=True, stdout=sys.stderr)
    return began, time.time() - began


def from_log(
    name: str, plan: api.Plan, log: Path, began: float, seconds: float, only: str | None = None
) -> Run:
    """The run of a tvmtune session that began at ``began``; ``only`` selects one implementation by
    name."""
    implementations = {
        (task.key, i.name): i
        for task in plan.tasks
        for i in task.implementations
        if only in (None, i.name)
    }
    found = []
    trials = 0
    for trial in read_log(log).trials:
        trials += trial.own
        implementation = implementations.get((trial.task, trial.implementation))
        if implementation is not None and trial.ok:
            # transferred records were available from the start
            when = max(0.0, trial.time - began) if trial.own else 0.0
            # the run's own first measurement, before it timed its incumbents again
            first = trial.seconds[: len(trial.seconds) - int(trial.extra.get("remeasured", 0))]
            latency = statistics.median(first or trial.seconds)
            found.append(Found(when, trials, trial.task, implementation, trial.trace, latency))
    return Run(name, found, trials, seconds)


def time_again(
    plan: api.Plan, runs: Sequence[Run], timing: Timing, *, rounds: int = 3
) -> dict[str, list[float]]:
    """Time the incumbents of all runs again, in turns, and store the results in them.

    Candidates that several runs share are timed once per round.
    """
    by_key: dict[str, list[Found]] = {}
    for found in _in_turns([run.incumbents() for run in runs]):
        by_key.setdefault(found.key, []).append(found)
    groups = list(by_key.values())
    builder, runner = plan.backend.make_builder(plan.device), plan.backend.make_runner(plan.device)
    with Measurer(plan.device, builder, runner, timing) as measurer:
        for number in range(rounds):
            print(f"timing {len(groups)} incumbents again, round {number + 1}", file=sys.stderr)
            for first in range(0, len(groups), BATCH):
                part = groups[first : first + BATCH]

                def note(index: int, result: Any, part: list[list[Found]] = part) -> None:
                    for found in part[index]:
                        if result.seconds:
                            found.again.append(statistics.median(result.seconds))

                measurer.measure([(g[0].implementation, g[0].trace) for g in part], note)
    return {key: group[0].again for key, group in by_key.items()}


def _in_turns(lists: Sequence[Sequence[Found]]) -> Iterator[Found]:
    """One of each list in turn, from the last incumbents back."""
    for number in range(max(map(len, lists), default=0)):
        for each in lists:
            if number < len(each):
                yield each[-1 - number]


def to_json(run: Run, plan: api.Plan) -> dict[str, Any]:
    return {
        "trials": run.trials,
        "seconds": run.seconds,
        "told_ms": run.reported(plan) * 1e3,
        "curve": [[p.seconds, p.trials, p.latency * 1e3] for p in run.curve(plan)],
    }


def stem(network: str) -> str:
    """A network's name, or its file's without the extension, for use in file names."""
    return Path(network).name.removesuffix(".py").removesuffix(".onnx")


def warn_if_busy() -> None:
    """Figures measured on a busy machine are worthless."""
    load = os.getloadavg()[0]
    if load > 0.5:
        print(
            f"warning: the load average is {load:.2f} before the benchmark starts", file=sys.stderr
        )


def at(curve: Sequence[Point], seconds: float) -> float:
    """The weighted latency at a time; infinity before the first point."""
    place = bisect.bisect_right([p.seconds for p in curve], seconds)
    return curve[place - 1].latency if place else float("inf")
