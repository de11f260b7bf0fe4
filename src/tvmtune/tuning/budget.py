"""When a session ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvmtune.types import Task

GAIN = 0.01
"""The part by which a latency has to fall for it to count as an improvement."""
SECONDS = 1800.0
PATIENCE = 64
"""What ends a session that was given no budget, whichever comes first: as many seconds, or as many
trials (four rounds) without an improvement of the estimate."""
FAILURE_RATE = 0.9


@dataclass(frozen=True)
class Budget:
    """When to stop; None is no limit. Trials of earlier runs in the log count, their time does not."""

    trials: int | None = None
    seconds: float | None = None
    per_task: int | None = None
    """Trials of one task."""
    patience: int | None = None
    """Trials over which the estimate has to improve by :data:`GAIN`."""
    task_patience: int | None = None
    """Trials over which a task has to improve by :data:`GAIN`; one that does not gets no more."""
    failure_rate: float = FAILURE_RATE
    """The part of the latest trials that may fail; see :mod:`tvmtune.tuning.failures`."""

    @property
    def limited(self) -> bool:
        """Whether it ends the search of a space of any size."""
        return any(limit is not None for limit in (self.trials, self.seconds, self.per_task))

    def with_defaults(self) -> Budget:
        """Itself, or where it is not limited, with :data:`SECONDS` and :data:`PATIENCE`."""
        if self.limited:
            return self
        patient = self.patience is not None or self.task_patience is not None
        return replace(self, seconds=SECONDS, patience=self.patience if patient else PATIENCE)


def space_size(tasks: Sequence[Task]) -> int | None:
    """The points of all implementations of all tasks; None where one of them is not known."""
    sizes = [i.space.size for task in tasks for i in task.implementations]
    return None if None in sizes else sum(size for size in sizes if size is not None)
