"""What a session knows about its tasks while it tunes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tvmtune.tuning.budget import GAIN
from tvmtune.tuning.round_times import Key
from tvmtune.tuning.tuners.base import Tuner
from tvmtune.types import Implementation, Task, Trial


@dataclass
class ImplementationState:
    """One implementation of a task and its trials."""

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
    """Best latency in seconds after each trial, which the scheduler extrapolates."""
    incumbent: Trial | None = None
    """The fastest trial not known to be wrong."""

    @property
    def begun(self) -> int:
        """Trials, including those being measured."""
        return len(self.trials) + self.pending

    @property
    def key(self) -> Key:
        """Identifies it: a template is a second space of the direct workload, with the same key."""
        return self.implementation.workload_key, self.implementation.name

    def add(self, trial: Trial) -> None:
        self.trials.append(trial)
        self._update(trial)

    def replace(self, old: Trial, new: Trial) -> None:
        """More is known of a trial."""
        _replace(self.trials, old, new)
        self.best_after.clear()
        self.incumbent = None
        for trial in self.trials:
            self._update(trial)

    def _update(self, trial: Trial) -> None:
        if trial.latency < self.best:
            self.incumbent = trial
        self.best_after.append(self.best)

    def all_failed(self, count: int) -> bool:
        """Whether it had at least ``count`` trials and all failed."""
        return len(self.trials) >= count and not any(t.ok for t in self.trials)

    @property
    def best(self) -> float:
        """Latency of the incumbent in seconds."""
        return self.incumbent.latency if self.incumbent is not None else float("inf")


@dataclass
class TaskState:
    """A task and its implementations."""

    task: Task
    implementations: list[ImplementationState]
    skipped: str | None = None
    """Why it gets no more trials, if so."""
    trials: list[Trial] = field(default_factory=list)
    """In the order in which they were measured."""

    @staticmethod
    def of(task: Task) -> TaskState:
        return TaskState(task, [ImplementationState(i) for i in task.implementations])

    def add(self, impl: ImplementationState, trial: Trial) -> None:
        impl.add(trial)
        self.trials.append(trial)

    def replace(self, old: Trial, new: Trial) -> None:
        """More is known of a trial."""
        self.implementation_of(old).replace(old, new)
        _replace(self.trials, old, new)

    def implementation_of(self, trial: Trial) -> ImplementationState:
        return next(
            i for i in self.implementations if i.implementation.name == trial.implementation
        )

    @property
    def own(self) -> list[Trial]:
        """Trials measured for this log, not transferred from another."""
        return [t for t in self.trials if t.own]

    @property
    def count(self) -> int:
        return len(self.own)

    @property
    def begun(self) -> int:
        """Trials, including those being measured."""
        return self.count + sum(impl.pending for impl in self.implementations)

    @property
    def incumbent(self) -> Trial | None:
        """The fastest trial not known to be wrong."""
        every = [impl.incumbent for impl in self.implementations if impl.incumbent is not None]
        return min(every, key=lambda t: t.latency) if every else None

    @property
    def best(self) -> float:
        """Latency of the incumbent in seconds."""
        return min(impl.best for impl in self.implementations)

    @property
    def gflops(self) -> float:
        """Rate of the incumbent in 1e9 operations of the direct algorithm per second."""
        return self.task.flop / self.best / 1e9 if self.best < float("inf") else 0.0

    def rests(self, patience: int) -> bool:
        """Whether its last ``patience`` trials brought no gain."""
        return stalled([self], self.own, patience)


@dataclass
class SessionState:
    """All tasks of a session."""

    tasks: list[TaskState]
    trials: list[Trial] = field(default_factory=list)
    """Of this log, earlier runs included, in the order in which they were measured."""

    def add(self, state: TaskState, impl: ImplementationState, trial: Trial) -> None:
        state.add(impl, trial)
        if trial.own:
            self.trials.append(trial)

    def replace(self, state: TaskState, old: Trial, new: Trial) -> None:
        """More is known of a trial."""
        state.replace(old, new)
        if old.own:
            _replace(self.trials, old, new)

    def by_key(self) -> dict[Key, tuple[TaskState, ImplementationState]]:
        return {impl.key: (state, impl) for state in self.tasks for impl in state.implementations}

    def estimate(self) -> float:
        return estimate(self.tasks)


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


def _replace(trials: list[Trial], old: Trial, new: Trial) -> None:
    # By identity: a concatenated log may contain a candidate twice.
    place = next(n for n in range(len(trials) - 1, -1, -1) if trials[n] is old)
    trials[place] = new
