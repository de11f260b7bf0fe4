"""What a session knows about each task while it tunes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tvmtune.tuning.tuners.base import Tuner
from tvmtune.types import Implementation, Task, Trial


@dataclass
class Arm:
    """One implementation of a task, with everything measured of it."""

    implementation: Implementation
    trials: list[Trial] = field(default_factory=list)
    tuner: Tuner | None = None
    exhausted: bool = False
    """The tuner has no new candidate left."""
    best_after: list[float] = field(default_factory=list)
    """Best latency in seconds after each trial: what the scheduler extrapolates."""

    def add(self, trial: Trial) -> None:
        self.trials.append(trial)
        self.best_after.append(
            min(trial.latency, self.best_after[-1] if self.best_after else float("inf"))
        )

    @property
    def best(self) -> float:
        """Best latency of those not known to be wrong, in seconds."""
        return min((t.latency for t in self.trials), default=float("inf"))


@dataclass
class TaskState:
    """A task and its arms."""

    task: Task
    arms: list[Arm]
    skipped: str | None = None
    """Why it gets no more trials, if so."""

    @property
    def trials(self) -> list[Trial]:
        return [t for arm in self.arms for t in arm.trials]

    @property
    def count(self) -> int:
        return sum(len(arm.trials) for arm in self.arms)

    @property
    def leader(self) -> Trial | None:
        good = [t for t in self.trials if t.ok]
        return min(good, key=lambda t: t.latency) if good else None

    @property
    def best(self) -> float:
        return min(arm.best for arm in self.arms)

    @property
    def gflops(self) -> float:
        """Rate of the leader in 1e9 operations of the direct algorithm per second."""
        return self.task.flop / self.best / 1e9 if self.best < float("inf") else 0.0

    def failures(self) -> dict[str, tuple[int, str]]:
        """How many trials failed at each stage, with the first message of each."""
        counts: Counter[str] = Counter()
        first: dict[str, str] = {}
        for trial in self.trials:
            if trial.error:
                stage = trial.error["stage"]
                counts[stage] += 1
                first.setdefault(stage, trial.error["message"])
        return {stage: (counts[stage], first[stage]) for stage in counts}


def estimate(states: list[TaskState]) -> float:
    """Sum of weight x best latency in seconds; infinite while a task has no valid trial."""
    return sum(s.task.weight * s.best for s in states if s.skipped is None or s.best < float("inf"))
