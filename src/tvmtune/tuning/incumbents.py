"""Confirms incumbents: the time and the output of a task's best candidate."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvmtune.accuracy import tolerance
from tvmtune.machine import interrupts
from tvmtune.passes.precision import rounds_to
from tvmtune.records import schema
from tvmtune.records.log import LogWriter
from tvmtune.tuning.clock import Clock
from tvmtune.tuning.drift import Drift
from tvmtune.tuning.observer import Observer
from tvmtune.tuning.state import ImplementationState, SessionState, TaskState
from tvmtune.types import Trial

if TYPE_CHECKING:
    from tvmtune.measure.measurer import Measurer

CONFIRM_SHARE = 0.04
"""Fraction of the session's time for timing incumbents again."""
FINAL_CONFIRM_SHARE = 0.1
"""The same when tuning is over: what is shipped should have been timed again."""
USUAL = 0.5
"""Seconds that timing one again is assumed to take before any was."""
WORTH = 0.01
"""Tasks with a smaller share of the estimate are not timed again."""


@dataclass(frozen=True)
class Revision:
    """A trial whose latency has changed, or that turned out to be wrong."""

    implementation: ImplementationState
    trial: Trial


class Incumbents:
    """Times incumbents again and checks their outputs.

    The fastest of many measurements is partly fast by chance. So the incumbent of a task that matters
    is timed again, with more repeats, and the median over all of them decides whether it stays the
    incumbent.
    """

    def __init__(
        self,
        session: SessionState,
        measurer: Measurer,
        log: LogWriter,
        observer: Observer,
        drift: Drift,
        clock: Clock,
    ) -> None:
        self.unverified: dict[str, str] = {}
        """Incumbents (by candidate) whose check reached no verdict, with the reason."""
        self.spent = 0.0
        """Seconds spent on timing incumbents again."""
        self._session = session
        self._measurer = measurer
        self._log = log
        self._observer = observer
        self._drift = drift
        self._clock = clock
        self._timed = 0
        self._not_timeable: set[str] = set()
        """Candidates that could not be timed again."""

    def confirm(self, *, at_last: bool = False) -> list[Revision]:
        """Time again what deserves it, then check every new incumbent; returns what has changed.

        ``at_last``: when tuning is over.
        """
        for state in self._session.tasks:
            trial = state.incumbent
            if trial and trial.verified is None and trial.candidate not in self.unverified:
                self._measurer.prepare(state.implementation_of(trial).implementation, trial.trace)
        revisions: list[Revision] = []
        if self._measurer.runner.kind == "measured":
            revisions += self._remeasure(FINAL_CONFIRM_SHARE if at_last else CONFIRM_SHARE)
        for state in self._session.tasks:
            revisions += self._verify(state)
        return revisions

    def _doubtful(self, state: TaskState) -> Trial | None:
        """The incumbent, if its time may be due to chance or to the machine: the best of several that
        was timed once, or measured while the machine was slow."""
        trial = state.incumbent
        if trial is None or trial.candidate in self._not_timeable:
            return None
        if "drift" in trial.extra:
            return trial
        rivals = sum(1 for t in state.trials if t.ok) > 1
        return trial if rivals and "remeasured" not in trial.extra else None

    def _remeasure(self, share: float) -> Iterator[Revision]:
        """The heaviest tasks first, while that takes at most ``share`` of the session's time."""
        while not self._drift.slow:
            interrupts.check()
            whole = self._session.estimate()
            heavy = [s for s in self._session.tasks if s.task.weight * s.best >= WORTH * whole]
            doubtful = [(s, t) for s in heavy if (t := self._doubtful(s)) is not None]
            usual = self.spent / self._timed if self._timed else USUAL
            if not doubtful or self.spent + usual > share * self._clock.elapsed:
                break
            state, trial = max(doubtful, key=lambda pair: pair[0].task.weight * pair[0].best)
            yield from self._time_again(state, trial)

    def _time_again(self, state: TaskState, trial: Trial) -> Iterator[Revision]:
        impl = state.implementation_of(trial)
        self._measurer.rest()  # do not attribute the time of other builds to it
        began = time.monotonic()
        result = self._measurer.remeasure(impl.implementation, trial.trace)
        self.spent += time.monotonic() - began
        self._timed += 1
        if result.seconds:
            self._log.write(schema.remeasurement(trial, result.seconds))
            again = trial.with_repeats(result.seconds)
            self._session.replace(state, trial, again)
            self._observer.remeasured(state, again, trial.latency)
            yield Revision(impl, again)
            return
        self._not_timeable.add(trial.candidate)
        if result.stage in ("crash", "run"):  # as it would in the library
            yield self._demote(state, trial, f"{result.stage} when timed again: {result.message}")

    def _verify(self, state: TaskState) -> Iterator[Revision]:
        """Check the incumbent; while it is wrong, demote it and check the next."""
        while (trial := state.incumbent) is not None and trial.verified is None:
            if trial.candidate in self.unverified:
                return
            interrupts.check()
            impl = state.implementation_of(trial)
            # Internal rounding may put the output one unit off, whatever its dtype.
            dtypes = {state.task.args[-1].dtype, *rounds_to(state.task.implementations[0].mod)}
            allowed = max(map(tolerance, dtypes))
            error, message = self._measurer.verify(impl.implementation, trial.trace)
            if error is not None and not error <= allowed:
                message = (
                    message or f"max|y - ref| / max|ref| is {error:.2e}, more than {allowed:g}"
                )
                yield self._demote(state, trial, message, error)
                continue
            if error is None:
                self.unverified[trial.candidate] = message
                checked = trial
            else:
                checked = trial.with_verdict(True)
                self._session.replace(state, trial, checked)
            self._log.write(schema.verdict(checked, error, message))
            self._observer.verdict(state, checked)

    def _demote(
        self, state: TaskState, trial: Trial, message: str, error: float = float("inf")
    ) -> Revision:
        """The candidate must not be shipped: the next one becomes the incumbent."""
        wrong = trial.with_verdict(False, message)
        self._session.replace(state, trial, wrong)
        self._log.write(schema.verdict(wrong, error, message))
        self._observer.verdict(state, wrong)
        return Revision(state.implementation_of(wrong), wrong)
