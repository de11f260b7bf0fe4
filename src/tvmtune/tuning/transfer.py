"""What other logs teach a session: records of the same workloads, and examples for the cost model."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtune.errors import UsageError
from tvmtune.graph import spaces, traces
from tvmtune.records import header
from tvmtune.records.log import Log, module_of, read_log
from tvmtune.types import TRANSFER, Trial

if TYPE_CHECKING:
    import tvm

    from tvmtune.tuning.model import CostModel

TAKEN = 16
"""Records of one implementation that are taken over: the best, which seed the search."""
LESSONS = 512
"""Trials in all that the cost model is shown."""
REPLAY = 0.01
"""Seconds that one of them may take on average: what is left when they are spent is left out."""


@dataclass(frozen=True)
class Lesson:
    """Trials of one workload."""

    workload: str
    module: str
    """As the log stores it."""
    trials: list[Trial]


def read(sources: Sequence[str | Path | Log], own: Path) -> list[Log]:
    """The logs to learn from, those that are read already as they are.

    Raises :class:`UsageError` if the session's own log is among them, :class:`TvmtuneError` for one
    that cannot be read, or that was measured with another TVM, whose traces may mean something else.
    """
    logs = []
    for source in sources:
        path = source.path if isinstance(source, Log) else Path(source)
        if own.exists() and path.exists() and own.samefile(path):
            raise UsageError(
                f"{path} is the log of this very run, which is continued by itself: leave it out."
            )
        log = source if isinstance(source, Log) else read_log(path)
        header.check_tvm(
            log,
            "where its schedules may mean something else. Leave it out, or tune that network anew.",
        )
        logs.append(log)
    return logs


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
            yield replace(trial, tuner=TRANSFER, verified=None, extra=dict(trial.extra))


def lessons(logs: Sequence[Log], kind: str, seed: int) -> list[Lesson]:
    """Trials by workload, of any device; up to :data:`LESSONS` of them, drawn at random."""
    found: dict[tuple[str, str], Lesson] = {}
    for log in logs:
        for trial in log.trials:
            module = module_of(log.tasks.get(trial.task), trial.implementation)
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
    """Show the trials to the cost model; returns how many could be replayed.

    Each lesson has its share of the time, and what others left of theirs.
    """
    count = 0
    end = time.monotonic()
    for lesson in found:
        end += REPLAY * len(lesson.trials)
        mod = traces.load_module(lesson.module)
        schedules: list[Any] = []
        latencies = []
        for number, trial in enumerate(lesson.trials):
            if number and time.monotonic() > end:
                break
            try:
                schedules.append(traces.apply(mod, trial.trace))
            except Exception:  # a trace that no longer applies teaches nothing
                continue
            latencies.append(trial.latency)
        if schedules:
            generator = spaces.RuleSpace({"kind": str(target.kind.name)}).generator()
            context = spaces.tune_context(mod, target, generator, seed=1, threads=threads)
            model.learn(model.features(context, schedules), latencies, lesson.workload)
            count += len(schedules)
    return count
