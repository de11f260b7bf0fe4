"""What a session reports to its observer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tvmtune.records.log import Log
    from tvmtune.tuning.budget import Budget
    from tvmtune.tuning.state import ImplementationState, TaskState
    from tvmtune.types import Device, Trial


class SessionView(Protocol):
    """A session as its observer sees it: read-only, and up to date at each access."""

    @property
    def device(self) -> Device: ...

    @property
    def budget(self) -> Budget: ...

    @property
    def peak(self) -> float | None:
        """The device's peak rate in GFLOPS, if known."""

    @property
    def states(self) -> Sequence[TaskState]: ...

    @property
    def others(self) -> Sequence[Log]:
        """Logs that it learns from."""

    @property
    def space_size(self) -> int | None:
        """Points of all spaces together, if known."""

    @property
    def new(self) -> int:
        """Trials of this run."""

    @property
    def resumed(self) -> int:
        """Trials of earlier runs."""

    @property
    def total(self) -> int:
        """Trials of this network on this device, earlier runs included."""

    @property
    def transferred_records(self) -> int:
        """Records from other logs, in this run or an earlier one."""

    @property
    def transferred_samples(self) -> int:
        """Trials of other logs that trained the cost model."""

    @property
    def slow_trials(self) -> int:
        """Trials of this run that were measured while the machine was slow."""

    @property
    def speed_spread(self) -> float:
        """Fraction by which the machine's slowest speed reading exceeds the fastest."""

    @property
    def unverified(self) -> Mapping[str, str]:
        """Candidates whose check reached no verdict, with the reason."""

    @property
    def unconfirmed(self) -> Sequence[str]:
        """Names of the tasks that matter, whose best time may be due to chance or to the machine."""

    @property
    def elapsed(self) -> float:
        """Seconds since the session began."""

    @property
    def stopped_because(self) -> str:
        """Empty while it runs, and if an error ended it."""

    def estimate(self) -> float:
        """Sum of weight x best latency in seconds; infinite while a task has no valid trial."""


class Observer:
    """Receives what a session does. Every method is optional."""

    def started(self, session: SessionView) -> None: ...

    def transferred(self, session: SessionView) -> None:
        """Other logs were read."""

    def proposing(self, state: TaskState, impl: ImplementationState) -> None: ...

    def trial(self, state: TaskState, trial: Trial) -> None: ...

    def remeasured(self, state: TaskState, trial: Trial, before: float) -> None:
        """An incumbent was timed again; ``before``: its previous latency in seconds."""

    def verdict(self, state: TaskState, trial: Trial) -> None: ...

    def skipped(self, state: TaskState) -> None: ...

    def drifted(self, slow: bool, slowdown: float) -> None:
        """The machine has become slow, or normal again; ``slowdown``: relative to its best."""

    def noted(self, message: str) -> None:
        """A message for the user, for example that a board was lost; from any thread."""

    def finished(self, session: SessionView) -> None: ...
