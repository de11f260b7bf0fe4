"""What the benchmarks of the search share: runs, and how fast they came to what.

A run is a list of found candidates with the time at which each was measured. Two runs are compared by
the candidates that each of them held for its best at a time, timed again after both: in turns, by one
runner, so that neither luck nor another way of timing decides.
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
"""Candidates that are built together when they are timed again."""


@dataclass
class Found:
    """One measured candidate."""

    seconds: float
    """When its result was there, since the run began."""
    trial: int
    """How many trials the run had done by then."""
    task: str
    implementation: Implementation
    trace: Any
    latency: float
    """Seconds, as the run measured it."""
    again: list[float] = field(default_factory=list)
    """Seconds, as it was timed again: a median of each round."""

    @property
    def key(self) -> str:
        return f"{self.implementation.workload_key}/{json.dumps(self.trace)}"

    @property
    def settled(self) -> float:
        """Median seconds of the second timing, infinity where it failed."""
        return statistics.median(self.again) if self.again else float("inf")


@dataclass
class Run:
    """What a tuning session found, and what it took."""

    name: str
    found: list[Found]
    trials: int
    seconds: float
    """Wall time of the whole process."""

    @property
    def rate(self) -> float:
        """Trials a minute, the start of the process included."""
        return 60 * self.trials / self.seconds

    def leaders(self) -> list[Found]:
        """Those that were the best of their task when they were measured."""
        best: dict[str, float] = {}
        chosen = []
        for found in sorted(self.found, key=lambda f: f.seconds):
            if found.latency < best.get(found.task, float("inf")):
                best[found.task] = found.latency
                chosen.append(found)
        return chosen

    def curve(self, plan: api.Plan) -> list[Point]:
        """The weighted latency over time, from when every task has a candidate; leaders count with
        their second timing."""
        held: dict[str, float] = {}
        points = []
        for found in self.leaders():
            held[found.task] = found.settled
            if len(held) == len(plan.tasks):
                weighted = sum(task.weight * held[task.key] for task in plan.tasks)
                points.append(Point(found.seconds, found.trial, weighted))
        return points

    def told(self, plan: api.Plan) -> float:
        """The final weighted latency in seconds by the run's own measurements."""
        best = {found.task: found.latency for found in self.leaders()}
        return sum(task.weight * best.get(task.key, float("inf")) for task in plan.tasks)


@dataclass(frozen=True)
class Point:
    seconds: float
    trials: int
    latency: float
    """Weighted, in seconds."""


def reached(curve: Sequence[Point], latency: float) -> Point | None:
    """Where the curve comes to a latency."""
    return next((point for point in curve if point.latency <= latency), None)


def plan_of(network: str) -> api.Plan:
    return api.plan(api.load(network), "cpu")


def tune(network: str, log: Path, trials: int, *more: str) -> tuple[float, float]:
    """``tvmtune tune`` in a process of its own; returns when it began and the seconds that it took."""
    words = ["tune", "--network", network, "--trials", str(trials), "--log", str(log), *more]
    return process([sys.executable, "-m", "tvmtune.cli", *words, "--no-compile"])


def process(command: Sequence[str]) -> tuple[float, float]:
    """Run it; when it began, seconds since the epoch, and the seconds that it took."""
    began = time.time()
    subprocess.run(command, check=True, stdout=sys.stderr)
    return began, time.time() - began


def from_log(
    name: str, plan: api.Plan, log: Path, began: float, seconds: float, only: str | None = None
) -> Run:
    """What a session of tvmtune wrote since ``began``; ``only`` one implementation of each task."""
    arms = {
        (task.key, i.name): i
        for task in plan.tasks
        for i in task.implementations
        if only in (None, i.name)
    }
    found = []
    trials = 0
    for trial in read_log(log).trials:
        trials += trial.own
        implementation = arms.get((trial.task, trial.implementation))
        if implementation is not None and trial.ok:
            # what was taken over from another log was there at once
            when = max(0.0, trial.time - began) if trial.own else 0.0
            # as the run believed when it measured it, before it timed its leaders again
            first = trial.seconds[: len(trial.seconds) - int(trial.extra.get("remeasured", 0))]
            latency = statistics.median(first or trial.seconds)
            found.append(Found(when, trials, trial.task, implementation, trial.trace, latency))
    return Run(name, found, trials, seconds)


def time_again(
    plan: api.Plan, runs: Sequence[Run], timing: Timing, *, rounds: int = 3
) -> dict[str, list[float]]:
    """Time the leaders of all runs again, in turns, and note the results in them.

    Equal candidates of two runs are timed once a round.
    """
    by_key: dict[str, list[Found]] = {}
    for found in _in_turns([run.leaders() for run in runs]):
        by_key.setdefault(found.key, []).append(found)
    groups = list(by_key.values())
    builder, runner = plan.backend.make_builder(plan.device), plan.backend.make_runner(plan.device)
    with Measurer(plan.device, builder, runner, timing) as measurer:
        for number in range(rounds):
            print(f"timing {len(groups)} leaders again, round {number + 1}", file=sys.stderr)
            for first in range(0, len(groups), BATCH):
                part = groups[first : first + BATCH]

                def note(index: int, result: Any, part: list[list[Found]] = part) -> None:
                    for found in part[index]:
                        if result.seconds:
                            found.again.append(statistics.median(result.seconds))

                measurer.measure([(g[0].implementation, g[0].trace) for g in part], note)
    return {key: group[0].again for key, group in by_key.items()}


def _in_turns(lists: Sequence[Sequence[Found]]) -> Iterator[Found]:
    """One of each list after the other, from the last leaders back."""
    for number in range(max(map(len, lists), default=0)):
        for each in lists:
            if number < len(each):
                yield each[-1 - number]


def to_json(run: Run, plan: api.Plan) -> dict[str, Any]:
    return {
        "trials": run.trials,
        "seconds": run.seconds,
        "told_ms": run.told(plan) * 1e3,
        "curve": [[p.seconds, p.trials, p.latency * 1e3] for p in run.curve(plan)],
    }


def stem(network: str) -> str:
    """A network's name, or that of its file, for the names of other files."""
    return Path(network).name.removesuffix(".py").removesuffix(".onnx")


def warn_if_busy() -> None:
    """Figures of a busy machine are void."""
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"warning: the load is {load:.2f} before anything has begun", file=sys.stderr)


def at(curve: Sequence[Point], seconds: float) -> float:
    """The weighted latency at a time, infinity before there is one."""
    place = bisect.bisect_right([p.seconds for p in curve], seconds)
    return curve[place - 1].latency if place else float("inf")
