"""Confirms incumbents: the output and the time of a task's best candidate."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvmtune import fields
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
RESERVED_SHARE = 0.1
"""Largest fraction of a time budget that the search leaves for the final confirmation."""
PATIENCE = 4.0
"""Factor on the deadline of a check that is repeated because the first reached no verdict."""
RECHECK_SHARE = 0.04
"""Fraction of the session's time for repeating checks while it tunes."""
FINAL_RECHECK_SHARE = 0.1
FINAL_RECHECK_SECONDS = 600.0
"""When tuning is over, checks are repeated for at most this share, or this many seconds if that is
more; never beyond the time budget."""
MOST_RECHECKED = 3
"""Candidates of a task that are checked when tuning is over, if those before reach no verdict."""


@dataclass(frozen=True)
class Revision:
    """A trial whose latency has changed, or that turned out to be wrong."""

    implementation: ImplementationState
    trial: Trial


class Incumbents:
    """Checks the outputs of incumbents, and times them again.

    An output is checked as soon as its candidate is an incumbent, whatever the budget, and before
    further times of it are believed: a kernel that skips work is fast every time.

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
        """Candidates whose check reached no verdict, with the reason. The check is repeated."""
        self.spent = 0.0
        """Seconds spent on timing incumbents again."""
        self._session = session
        self._measurer = measurer
        self._log = log
        self._observer = observer
        self._drift = drift
        self._clock = clock
        self._timed = 0
        self._rechecking = 0.0
        """Seconds spent on checks after one that reached no verdict."""
        self._last_check = 0.0
        """Seconds that the last check without a verdict took."""
        self._rechecked: set[str] = set()
        """Candidates whose check was repeated."""
        self._not_timeable: set[str] = set()
        """Candidates that could not be timed again."""
        self._end = float("inf")
        """When timing again and repeating checks end, in seconds since the session began."""

    def confirm(self, *, at_last: bool = False, end: float = float("inf")) -> list[Revision]:
        """Check every new incumbent, then time again what deserves it; returns what has changed.

        ``at_last``: when tuning is over. ``end``: when the time budget ends, in seconds since the
        session began; what is not expected to be done by then is left out, except first checks.
        """
        self._end = end
        for state in self._session.tasks:
            trial = state.incumbent
            if trial and trial.verified is None and trial.candidate not in self.unverified:
                self._measurer.prepare(state.implementation_of(trial).implementation, trial.trace)
        waiting = set(self.unverified)
        revisions: list[Revision] = []
        for state in self._session.tasks:
            revisions += self._verify(state)
        if self._is_timed:
            revisions += self._remeasure(FINAL_CONFIRM_SHARE if at_last else CONFIRM_SHARE)
        revisions += self._recheck(None if at_last else waiting)
        return revisions

    def unconfirmed(self) -> list[TaskState]:
        """Tasks that matter, whose best time may be due to chance or to the machine; heaviest first."""
        if not self._is_timed:
            return []
        whole = self._session.estimate()
        heavy = [s for s in self._session.tasks if s.task.weight * s.best >= WORTH * whole]
        doubtful = [s for s in heavy if self._doubtful(s) is not None]
        return sorted(doubtful, key=lambda state: -state.task.weight * state.best)

    def seconds_to_confirm(self, budget: float) -> float:
        """How many seconds of a time budget the final confirmation should have."""
        timing = self._usual * len(self.unconfirmed())
        checks = PATIENCE * self._last_check * len(self._unchecked())
        return min(RESERVED_SHARE * budget, timing + checks)

    @property
    def _is_timed(self) -> bool:
        """Whether latencies are measured; modelled ones do not vary."""
        return self._measurer.runner.kind == "measured"

    @property
    def _usual(self) -> float:
        """Seconds that timing one again takes."""
        return self.spent / self._timed if self._timed else USUAL

    def _unchecked(self) -> list[TaskState]:
        """Tasks whose incumbent's check reached no verdict; heaviest first."""
        states = [s for s in self._session.tasks if s.incumbent and not s.incumbent.verified]
        return sorted(states, key=lambda state: -state.task.weight * state.best)

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
            states = self.unconfirmed()
            now = self._clock.elapsed
            if (
                not states
                or self.spent + self._usual > share * now
                or now + self._usual > self._end
            ):
                break
            trial = states[0].incumbent
            assert trial is not None
            yield from self._time_again(states[0], trial)
            yield from self._verify(states[0])  # another may be the incumbent now

    def _time_again(self, state: TaskState, trial: Trial) -> Iterator[Revision]:
        impl = state.implementation_of(trial)
        if not self._measurer.builds_ahead:
            self._measurer.rest()  # do not attribute the time of other builds to it
        began = time.monotonic()
        result = self._measurer.remeasure(impl.implementation, trial.trace)
        self.spent += time.monotonic() - began
        self._timed += 1
        if result.seconds and fields.are_times([*result.seconds]):
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
            yield from self._check(state, trial)

    def _check(self, state: TaskState, trial: Trial, patience: float = 1.0) -> Iterator[Revision]:
        """Check one trial, and demote it if it is wrong."""
        interrupts.check()
        impl = state.implementation_of(trial)
        # Internal rounding may put the output one unit off, whatever its dtype.
        dtypes = {state.task.args[-1].dtype, *rounds_to(state.task.implementations[0].mod)}
        allowed = max(map(tolerance, dtypes))
        began = time.monotonic()
        error, message = self._measurer.verify(impl.implementation, trial.trace, patience=patience)
        if error is None:
            self._last_check = time.monotonic() - began
            self.unverified[trial.candidate] = message
            self._log.write(schema.verdict(trial, error, message))
            self._observer.verdict(state, trial)
            return
        self.unverified.pop(trial.candidate, None)
        if not error <= allowed:
            what = (
                "max|y - ref| / max|ref|" if "float" in state.task.args[-1].dtype else "the error"
            )
            message = message or f"{what} is {error:.2e}, more than {allowed:g}"
            yield self._demote(state, trial, message, error)
            return
        right = trial.with_verdict(True)
        self._session.replace(state, trial, right)
        self._log.write(schema.verdict(right, error, message))
        self._observer.verdict(state, right)

    def _recheck(self, waiting: set[str] | None) -> Iterator[Revision]:
        """Check incumbents without a verdict once more, with more patience: the machine may have been
        busy. Heaviest tasks first.

        ``waiting``: the candidates that may be checked. None when tuning is over: then any, and if
        there is still no verdict, the next fastest, since one that is known to be right is shipped
        instead.
        """
        at_last = waiting is None
        for state in self._unchecked():
            fastest = sorted((t for t in state.trials if t.ok), key=lambda t: t.latency)
            for trial in fastest[: MOST_RECHECKED if at_last else 1]:
                if trial.verified:
                    break
                if trial.candidate in self._rechecked or not (
                    waiting is None or trial.candidate in waiting
                ):
                    continue
                if not self._may_recheck(at_last=at_last):
                    return
                self._rechecked.add(trial.candidate)
                began = time.monotonic()
                revisions = list(self._check(state, trial, PATIENCE))
                self._rechecking += time.monotonic() - began
                yield from revisions
                if not revisions and trial.candidate not in self.unverified:
                    break  # it is right
            yield from self._verify(state)  # the next one, if the incumbent was demoted

    def _may_recheck(self, *, at_last: bool) -> bool:
        expected = PATIENCE * self._last_check
        if self._clock.elapsed + expected > self._end:
            return False
        if at_last:
            share = FINAL_RECHECK_SHARE * self._clock.elapsed
            return self._rechecking < max(FINAL_RECHECK_SECONDS, share)
        return self._rechecking + expected <= RECHECK_SHARE * self._clock.elapsed

    def _demote(
        self, state: TaskState, trial: Trial, message: str, error: float = float("inf")
    ) -> Revision:
        """The candidate must not be shipped: the next one becomes the incumbent."""
        wrong = trial.with_verdict(False, message)
        self._session.replace(state, trial, wrong)
        self._log.write(schema.verdict(wrong, error, message))
        self._observer.verdict(state, wrong)
        return Revision(state.implementation_of(wrong), wrong)
