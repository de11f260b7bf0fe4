"""When a session ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvmtune import checks
from tvmtune.types import Task

GAIN = 0.01
"""Fraction by which a latency must fall to count as an improvement."""
SECONDS = 1800.0
PATIENCE = 64
"""End of a session without a budget, whichever comes first: seconds, or trials (four rounds) without an
improvement of the estimate."""
FAILURE_RATE = 0.9


@dataclass(frozen=True)
class Budget:
    """When to stop; None: no limit. Trials of earlier runs in the log count, their time does not."""

    trials: int | None = None
    seconds: float | None = None
    per_task: int | None = None
    """Trials of one task."""
    patience: int | None = None
    """Trials over which the estimate must improve by :data:`GAIN`."""
    task_patience: int | None = None
    """Trials over which a task must improve by :data:`GAIN` to get more."""
    failure_rate: float = FAILURE_RATE
    """Fraction of the latest trials that may fail; see :mod:`tvmtune.tuning.failures`."""

    def __post_init__(self) -> None:
        """Raises :class:`UsageError` for a value out of range."""
        checks.at_least("--trials", self.trials, 1)
        checks.above_zero("--time-budget", self.seconds)
        checks.at_least("--trials-per-task", self.per_task, 1)
        checks.at_least("--patience", self.patience, 1)
        checks.at_least("--task-patience", self.task_patience, 1)
        checks.fraction("--max-failure-rate", self.failure_rate)

    @property
    def limited(self) -> bool:
        """Whether it ends a search of any size."""
        return any(limit is not None for limit in (self.trials, self.seconds, self.per_task))

    def with_defaults(self) -> Budget:
        """Unchanged if limited, otherwise with :data:`SECONDS` and :data:`PATIENCE`."""
        if self.limited:
            return self
        patient = self.patience is not None or self.task_patience is not None
        return replace(self, seconds=SECONDS, patience=self.patience if patient else PATIENCE)


def space_size(tasks: Sequence[Task]) -> int | None:
    """Points of all implementations of all tasks; None if one is unknown."""
    sizes = [i.space.size for task in tasks for i in task.implementations]
    return None if None in sizes else sum(size for size in sizes if size is not None)
