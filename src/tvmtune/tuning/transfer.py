"""What other logs teach a session: records of the same workloads, and examples for the cost model."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from tvmtune.errors import TvmtuneError
from tvmtune.graph import spaces, traces
from tvmtune.types import Trial

if TYPE_CHECKING:
    import tvm

    from tvmtune.records.log import Log
    from tvmtune.tuning.model import CostModel

TAKEN = 16
"""Records of one implementation that are taken over: the best, which seed the search."""
LESSONS = 512
"""Trials in all that the cost model is shown; replaying one takes some 10 ms."""
TUNER = "transfer"
"""The tuner's name in trials that are taken over; they do not count as trials of this log."""


@dataclass(frozen=True)
class Lesson:
    """Trials of one workload."""

    workload: str
    module: str
    """As the log stores it."""
    trials: list[Trial]


def check(logs: Sequence[Log]) -> None:
    """Raise :class:`TvmtuneError` for a log of another TVM, whose traces may mean something else."""
    mine = version("apache-tvm")
    for log in logs:
        others = {h.get("versions", {}).get("apache-tvm") for h in log.headers} - {mine}
        if others:
            raise TvmtuneError(
                f"--transfer-from {log.path}: it was measured with apache-tvm "
                f"{', '.join(sorted(map(str, others)))}, and this is {mine}: its schedules may mean "
                "something else. Leave it out, or tune that network anew."
            )


def records(logs: Sequence[Log], device: str, kind: str) -> Iterator[Trial]:
    """The best records of each implementation on this very device, marked as taken over."""
    by_arm: dict[tuple[str, str], dict[str, Trial]] = {}
    for log in logs:
        for trial in log.trials:
            if trial.ok and trial.device == device and trial.kind == kind:
                arm = by_arm.setdefault((trial.workload, trial.implementation), {})
                arm.setdefault(trial.candidate, trial)
    for arm in by_arm.values():
        for trial in sorted(arm.values(), key=lambda t: t.latency)[:TAKEN]:
            yield replace(trial, tuner=TUNER, verified=None)


def lessons(logs: Sequence[Log], kind: str, seed: int) -> list[Lesson]:
    """Trials by workload, of any device; up to :data:`LESSONS` of them, drawn at random."""
    found: dict[tuple[str, str], Lesson] = {}
    for log in logs:
        for trial in log.trials:
            line = log.tasks.get(trial.task)
            module = next(
                (
                    i.get("module")
                    for i in (line or {}).get("implementations", ())
                    if i["name"] == trial.implementation
                ),
                None,
            )
            if module and trial.ok and trial.kind == kind:
                # Times of another device are told apart: only ranks within a group are learnt.
                key = (trial.device, trial.workload)
                group = found.setdefault(key, Lesson("/".join(key), module, []))
                group.trials.append(trial)
    rng = random.Random(seed)
    groups = list(found.values())
    if len(groups) > LESSONS // 2:  # a ratio takes two
        groups = rng.sample(groups, LESSONS // 2)
    each = max(2, LESSONS // max(1, len(groups)))
    for lesson in groups:
        if len(lesson.trials) > each:
            lesson.trials[:] = rng.sample(lesson.trials, each)
    return groups


def teach(
    model: CostModel, found: Sequence[Lesson], target: tvm.target.Target, threads: int
) -> int:
    """Show the trials to the cost model; returns how many could be replayed."""
    count = 0
    for lesson in found:
        mod = traces.load_module(lesson.module)
        schedules: list[Any] = []
        latencies = []
        for trial in lesson.trials:
            try:
                schedules.append(traces.apply(mod, trial.trace))
            except Exception:  # a trace that no longer applies teaches nothing
                continue
            latencies.append(trial.latency)
        if schedules:
            generator = spaces.RuleSpace({"kind": str(target.kind.name)}).generator()
            context = spaces.tune_context(mod, target, generator, seed=1, threads=threads)
            model.learn(context, schedules, latencies, lesson.workload)
            count += len(schedules)
    return count
