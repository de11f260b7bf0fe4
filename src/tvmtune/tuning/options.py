"""How to tune, checked once for the command line and the Python API alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvmtune import checks
from tvmtune.tuning import scheduler, tuners
from tvmtune.tuning.budget import Budget
from tvmtune.types import Task, Timing


@dataclass(frozen=True)
class TuneOptions:
    """Options of a tuning run. Raises :class:`UsageError` for an unknown tuner, tuner option or
    scheduler, and for a value out of range."""

    budget: Budget = field(default_factory=Budget)
    timing: Timing = field(default_factory=Timing)
    tuner: str = "xgb"
    """A name or an alias; the canonical name once checked."""
    tuner_options: Mapping[str, Any] = field(default_factory=dict)
    """Once checked, in the types of the tuner's defaults."""
    scheduler: str = "gradient"
    """The task scheduler: a name or an alias; the canonical name once checked."""
    seed: int = 0
    wait: float | None = None
    """Seconds to go on without any board or builder; None for the default of 600."""
    build_cluster: str | None = None
    """Address of a Dask scheduler whose machines build the candidates."""
    shipped_records: bool = True
    """Whether to start from the records that come with tvmtune."""

    def __post_init__(self) -> None:
        tuner = tuners.canonical(self.tuner)
        options = tuners.check_options(tuner, self.tuner_options)
        object.__setattr__(self, "tuner", tuner)
        object.__setattr__(self, "tuner_options", options)
        object.__setattr__(self, "scheduler", scheduler.check(self.scheduler))
        checks.above_zero("--wait", self.wait)

    def check_tasks(self, tasks: Sequence[Task]) -> None:
        """Raise :class:`UsageError` if tuning these tasks would never end."""
        tuners.check_space(self.tuner, tasks, self.budget.limited)
