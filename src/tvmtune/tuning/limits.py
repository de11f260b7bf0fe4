"""Whether a session continues, and how large its next round may be."""

from __future__ import annotations

from collections.abc import Mapping

from tvmtune.tuning.budget import Budget, space_size
from tvmtune.tuning.clock import Clock
from tvmtune.tuning.round_times import Key, RoundTimes
from tvmtune.tuning.scheduler import is_open
from tvmtune.tuning.state import SessionState, stalled

BATCH = 16
"""Candidates per round; more would waste trials while a task still improves quickly."""
HEAVY_SHARE = 0.05
"""A task with this share of the estimate must have had a round before patience ends the session."""
COMPLETE = "every point of the space has been measured"


class SessionLimits:
    """Compares a budget with what a session has done."""

    def __init__(
        self, budget: Budget, state: SessionState, times: RoundTimes, clock: Clock
    ) -> None:
        self.budget = budget
        self.space_size = space_size([s.task for s in state.tasks])
        """Points of all spaces together, if known."""
        self.reason = ""
        """Why the session must end, once it must."""
        self.reserved = 0.0
        """Seconds at the end of the time budget in which no round may run."""
        self._state = state
        self._times = times
        self._clock = clock

    @property
    def seconds_left(self) -> float:
        seconds = self.budget.seconds
        return float("inf") if seconds is None else seconds - self._clock.elapsed

    def batch(
        self,
        key: Key | None = None,
        count: int = BATCH,
        begun: Mapping[Key, int] | None = None,
    ) -> int:
        """Candidates that a round may have, at most ``count``; 0 if there is no time for one.

        ``key``: the round's implementation, if it has only one; ``begun``: numbers of candidates being
        measured now.
        """
        begun = begun or {}
        limits = [limit for limit in (self.budget.trials, self.space_size) if limit is not None]
        spent = len(self._state.trials) + sum(begun.values())
        count = max(0, min([count, *(limit - spent for limit in limits)]))
        left = self.seconds_left
        if not count or left == float("inf"):
            return count
        left -= self.reserved
        left -= sum(n * (self._times.rounds.of(k) or 0.0) for k, n in begun.items())
        count = self._times.candidates_within(left, key, count)
        if not count and not begun:
            self._out_of_time()
        return count

    def reached(self) -> bool:
        """Whether a limit is reached; :attr:`reason` says which."""
        budget, trials = self.budget, len(self._state.trials)
        if self.space_size is not None and trials >= self.space_size:
            self.reason = COMPLETE
        elif budget.trials is not None and trials >= budget.trials:
            self.reason = f"the budget of {budget.trials} trials is spent"
        elif self.seconds_left <= self.reserved:
            self._out_of_time()
        elif budget.patience is not None and self._stalled(budget.patience):
            self.reason = f"the estimate improved by less than 1% over {budget.patience} trials"
        return bool(self.reason)

    def nothing_left(self) -> None:
        """Record that no task may have more trials."""
        patience, tasks = self.budget.task_patience, self._state.tasks
        if all(impl.complete for state in tasks for impl in state.implementations):
            self.reason = COMPLETE
        elif patience is not None and any(s.rests(patience) for s in tasks):
            self.reason = f"no task improved by 1% over its last {patience} trials"
        else:
            self.reason = "nothing is left to try"

    def _out_of_time(self) -> None:
        self.reason = f"the time budget of {self.budget.seconds:.0f} s is spent"

    def _stalled(self, patience: int) -> bool:
        """No gain, although the tasks that make up most of the latency have had a round."""
        if not stalled(self._state.tasks, self._state.trials, patience):
            return False
        whole = self._state.estimate()
        heavy = [s for s in self._state.tasks if s.task.weight * s.best > HEAVY_SHARE * whole]
        per_task, task_patience = self.budget.per_task, self.budget.task_patience
        return all(len(s.trials) >= BATCH or not is_open(s, per_task, task_patience) for s in heavy)
