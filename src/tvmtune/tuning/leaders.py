"""What has to hold before the best candidate of a task is trusted: its time, and its answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tvmtune import interrupt
from tvmtune.accuracy import tolerance
from tvmtune.graph.precision import rounds_to
from tvmtune.records.log import LogWriter
from tvmtune.records.repeats import add_repeats
from tvmtune.tuning.drift import Drift
from tvmtune.tuning.observer import Observer
from tvmtune.tuning.state import Arm, TaskState, estimate
from tvmtune.types import Trial

if TYPE_CHECKING:
    from tvmtune.measure.measurer import Measurer

SHARE = 0.04
"""Of the session's time that goes into timing leaders once more."""
AT_LAST = 0.1
"""The same once tuning is over: what is shipped should have been timed again."""
USUAL = 0.5
"""Seconds that one is taken to cost before any was timed."""
WORTH = 0.01
"""A task that makes up a smaller part of the estimate does not deserve it."""


class Leaders:
    """Times leaders once more, and checks their answers.

    The quickest of many measurements is quick by chance, too. So the leader of a task that counts is
    timed again, with more repeats, and the median over all of them decides whether it still leads.
    ``clock`` gives the seconds since the session began; ``revised`` hears of each candidate whose time
    or verdict has changed.
    """

    def __init__(
        self,
        states: Sequence[TaskState],
        measurer: Measurer,
        log: LogWriter,
        observer: Observer,
        drift: Drift,
        clock: Callable[[], float],
        revised: Callable[[Arm, Trial], None] = lambda arm, trial: None,
    ) -> None:
        self.unchecked: dict[str, str] = {}
        """Leaders (by candidate) on which no verdict could be reached, with the reason."""
        self.spent = 0.0
        """Seconds that timing them once more has taken."""
        self._states = states
        self._measurer = measurer
        self._log = log
        self._observer = observer
        self._drift = drift
        self._clock = clock
        self._revised = revised
        self._done = 0
        self._gone: set[str] = set()
        """Those that could not be timed again."""

    def settle(self, *, at_last: bool = False) -> None:
        """Time again what deserves it, then check every leader that is new; ``at_last``: when tuning is
        over."""
        for state in self._states:
            trial = state.leader
            if trial and trial.verified is None and trial.candidate not in self.unchecked:
                self._measurer.prepare(state.arm_of(trial).implementation, trial.trace)
        if self._measurer.runner.kind == "measured":
            self._remeasure(AT_LAST if at_last else SHARE)
        for state in self._states:
            self.verify(state)

    def doubtful(self, state: TaskState) -> Trial | None:
        """The leader, if its time may be the machine's doing: the best of several that was timed once,
        or measured while the machine was slow."""
        trial = state.leader
        if trial is None or trial.candidate in self._gone:
            return None
        if "drift" in trial.extra:
            return trial
        rivals = sum(1 for t in state.trials if t.ok) > 1
        return trial if rivals and "remeasured" not in trial.extra else None

    def _remeasure(self, share: float) -> None:
        """The heaviest tasks first, as long as all of that costs no more than ``share`` of the time."""
        while not self._drift.slow:
            interrupt.check()
            whole = estimate(self._states)
            heavy = [s for s in self._states if s.task.weight * s.best >= WORTH * whole]
            found = [(s, t) for s in heavy if (t := self.doubtful(s)) is not None]
            usual = self.spent / self._done if self._done else USUAL
            if not found or self.spent + usual > share * self._clock():
                break
            state, trial = max(found, key=lambda pair: pair[0].task.weight * pair[0].best)
            self._time_again(state, trial)

    def _time_again(self, state: TaskState, trial: Trial) -> None:
        arm = state.arm_of(trial)
        self._measurer.rest()  # others' builds are not what timing it again costs
        began = time.monotonic()
        result = self._measurer.remeasure(arm.implementation, trial.trace)
        self.spent += time.monotonic() - began
        self._done += 1
        if not result.seconds:
            self._gone.add(trial.candidate)
            if result.stage in ("crash", "run"):  # as it would do in the library
                self._demote(state, trial, f"{result.stage} when timed again: {result.message}")
            return
        before = trial.latency
        seconds = list(result.seconds)
        self._log.append(
            "remeasure",
            {
                "workload": trial.workload,
                "candidate": trial.candidate,
                "seconds": seconds,
                "time": time.time(),
            },
        )
        add_repeats(trial, seconds)
        arm.revise()
        self._revised(arm, trial)
        self._observer.remeasured(state, trial, before)

    def verify(self, state: TaskState) -> None:
        """Check the leader; while it is wrong, demote it and check the next."""
        while (trial := state.leader) is not None and trial.verified is None:
            if trial.candidate in self.unchecked:
                return
            interrupt.check()
            arm = state.arm_of(trial)
            # One that rounds inside may be a unit off, whatever it writes in the end.
            kinds = {state.task.args[-1].dtype, *rounds_to(state.task.implementations[0].mod)}
            allowed = max(map(tolerance, kinds))
            error, message = self._measurer.verify(arm.implementation, trial.trace)
            if error is None:
                self.unchecked[trial.candidate] = message
                self._log_verdict(trial, None, message)
            elif error <= allowed:
                trial.verified = True
                self._log_verdict(trial, error, message)
            else:
                message = (
                    message or f"max|y - ref| / max|ref| is {error:.2e}, more than {allowed:g}"
                )
                self._demote(state, trial, message, error)
                continue
            self._observer.verdict(state, trial)

    def _demote(
        self, state: TaskState, trial: Trial, message: str, error: float = float("inf")
    ) -> None:
        """The candidate must not be shipped: the next one leads."""
        trial.verified = False
        trial.error = {"stage": "wrong-answer", "message": message}
        arm = state.arm_of(trial)
        arm.revise()
        self._revised(arm, trial)
        self._log_verdict(trial, error, message)
        self._observer.verdict(state, trial)

    def _log_verdict(self, trial: Trial, error: float | None, message: str) -> None:
        self._log.append(
            "verdict",
            {
                "workload": trial.workload,
                "candidate": trial.candidate,
                "verified": trial.verified,
                "deviation": "inf" if error == float("inf") else error,
                "message": message,
            },
        )
