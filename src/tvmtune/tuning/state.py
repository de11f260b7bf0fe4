"""What a session knows about each task while it tunes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tvmtune.tuning.budget import GAIN
from tvmtune.tuning.pace import Key
from tvmtune.tuning.tuners.base import Tuner
from tvmtune.types import Implementation, Task, Trial


@dataclass
class Arm:
    """One implementation of a task, with everything measured of it."""

    implementation: Implementation
    trials: list[Trial] = field(default_factory=list)
    tuner: Tuner | None = None
    pending: int = 0
    """Candidates that are being measured."""
    exhausted: bool = False
    """It gets no more trials."""
    complete: bool = False
    """Every point of its space, whose size is known, has been measured."""
    best_after: list[float] = field(default_factory=list)
    """Best latency in seconds after each trial: what the scheduler extrapolates."""
    leader: Trial | None = None
    """The quickest of those not known to be wrong."""

    @property
    def begun(self) -> int:
        """Trials, with those that are being measured."""
        return len(self.trials) + self.pending

    @property
    def key(self) -> Key:
        """A template is another space of the direct workload: it takes both to tell arms apart."""
        return self.implementation.workload_key, self.implementation.name

    def add(self, trial: Trial) -> None:
        self.trials.append(trial)
        self._follow(trial)

    def revise(self) -> None:
        """To be called when what is known of a trial has changed."""
        self.best_after.clear()
        self.leader = None
        for trial in self.trials:
            self._follow(trial)

    def _follow(self, trial: Trial) -> None:
        if trial.latency < self.best:
            self.leader = trial
        self.best_after.append(self.best)

    def hopeless(self, most: int) -> bool:
        """Whether it had ``most`` trials and never a success."""
        return len(self.trials) >= most and not any(t.ok for t in self.trials)

    @property
    def best(self) -> float:
        """Latency of the leader in seconds."""
        return self.leader.latency if self.leader is not None else float("inf")


@dataclass
class TaskState:
    """A task and its arms."""

    task: Task
    arms: list[Arm]
    skipped: str | None = None
    """Why it gets no more trials, if so."""
    trials: list[Trial] = field(default_factory=list)
    """In the order in which they were measured."""

    def add(self, arm: Arm, trial: Trial) -> None:
        arm.add(trial)
        self.trials.append(trial)

    def arm_of(self, trial: Trial) -> Arm:
        return next(a for a in self.arms if a.implementation.name == trial.implementation)

    @property
    def own(self) -> list[Trial]:
        """Those that were measured for this log, not taken over from another."""
        return [t for t in self.trials if t.own]

    @property
    def count(self) -> int:
        return len(self.own)

    @property
    def begun(self) -> int:
        """With those that are being measured."""
        return self.count + sum(arm.pending for arm in self.arms)

    @property
    def leader(self) -> Trial | None:
        leaders = [arm.leader for arm in self.arms if arm.leader is not None]
        return min(leaders, key=lambda t: t.latency) if leaders else None

    @property
    def best(self) -> float:
        return min(arm.best for arm in self.arms)

    @property
    def gflops(self) -> float:
        """Rate of the leader in 1e9 operations of the direct algorithm per second."""
        return self.task.flop / self.best / 1e9 if self.best < float("inf") else 0.0

    def rests(self, patience: int) -> bool:
        """Whether its last ``patience`` trials brought it no gain."""
        return stalled([self], self.own, patience)


def estimate(states: Sequence[TaskState]) -> float:
    """Sum of weight x best latency in seconds; infinite while a task has no valid trial."""
    return sum(s.task.weight * s.best for s in states if s.skipped is None or s.best < float("inf"))


def stalled(states: Sequence[TaskState], trials: Sequence[Trial], patience: int) -> bool:
    """Whether the last ``patience`` of ``trials`` improved the estimate by less than :data:`GAIN`.

    ``trials`` are those of ``states`` in the order in which they were measured.
    """
    if len(trials) <= patience:
        return False
    latest = {id(t) for t in trials[-patience:]}
    before = 0.0
    for state in states:
        if state.skipped is None or state.best < float("inf"):
            earlier = (t.latency for t in state.trials if id(t) not in latest)
            before += state.task.weight * min(earlier, default=float("inf"))
    return before < float("inf") and estimate(states) > (1.0 - GAIN) * before
