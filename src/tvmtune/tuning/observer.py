"""What a session tells whoever watches it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvmtune.tuning.drift import Drift
    from tvmtune.tuning.session import Session
    from tvmtune.tuning.state import Arm, TaskState
    from tvmtune.types import Trial


class Observer:
    """Hears what the session does. Every method may be overridden; none needs to be."""

    def started(self, session: Session) -> None: ...

    def transferred(self, session: Session) -> None:
        """Other logs were read: ``session.taken`` records, ``session.taught`` lessons."""

    def proposing(self, state: TaskState, arm: Arm) -> None: ...

    def trial(self, state: TaskState, trial: Trial) -> None: ...

    def remeasured(self, state: TaskState, trial: Trial, before: float) -> None:
        """A leader was timed once more; ``before``: its latency until then, in seconds."""

    def verdict(self, state: TaskState, trial: Trial) -> None: ...

    def skipped(self, state: TaskState) -> None: ...

    def drifted(self, drift: Drift) -> None:
        """The machine has become slow, or is as quick as before again."""

    def noted(self, message: str) -> None:
        """Something that the user should know, boards that come and go for example; in any thread."""

    def finished(self, session: Session) -> None: ...
