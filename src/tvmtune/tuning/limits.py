"""Whether a session goes on, and how large its next round may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tvmtune.tuning.budget import Budget, space_size
from tvmtune.tuning.pace import Key, Pace
from tvmtune.tuning.scheduler import is_open
from tvmtune.tuning.state import TaskState, estimate, stalled
from tvmtune.types import Trial

BATCH = 16
"""Candidates per round; fewer while a task is still quick to improve would waste the search."""
HEAVY = 0.05
"""A task that makes up this part of the estimate has to have had a round before patience ends."""
COMPLETE = "every point of the space has been measured"


class Limits:
    """A budget held against what a session has done.

    ``trials``: those of the session in their order, growing; ``clock``: seconds since it began.
    """

    def __init__(
        self,
        budget: Budget,
        states: Sequence[TaskState],
        trials: Sequence[Trial],
        pace: Pace,
        clock: Callable[[], float],
    ) -> None:
        self.budget = budget
        self.points = space_size([s.task for s in states])
        """Points of all spaces together, where that is known."""
        self.reason = ""
        """Why the session has to end, once it has to."""
        self._states = states
        self._trials = trials
        self._pace = pace
        self._clock = clock

    @property
    def seconds_left(self) -> float:
        seconds = self.budget.seconds
        return float("inf") if seconds is None else seconds - self._clock()

    def batch(
        self,
        key: Key | None = None,
        count: int = BATCH,
        begun: Mapping[Key, int] | None = None,
    ) -> int:
        """Candidates that a round may have, at most ``count``; none if there is no time for one.

        ``key``: the implementation whose round it is, if it is of one; ``begun``: how many candidates
        of which implementations are being measured now.
        """
        begun = begun or {}
        limits = [limit for limit in (self.budget.trials, self.points) if limit is not None]
        spent = len(self._trials) + sum(begun.values())
        count = max(0, min([count, *(limit - spent for limit in limits)]))
        left = self.seconds_left
        if not count or left == float("inf"):
            return count
        left -= sum(n * (self._pace.rounds.of(k) or 0.0) for k, n in begun.items())
        count = self._pace.fitting(key, count, left)
        if not count and not begun:
            self._out_of_time()
        return count

    def reached(self) -> bool:
        """Whether one of them is; :attr:`reason` says which."""
        budget = self.budget
        if self.points is not None and len(self._trials) >= self.points:
            self.reason = COMPLETE
        elif budget.trials is not None and len(self._trials) >= budget.trials:
            self.reason = f"the budget of {budget.trials} trials is spent"
        elif self.seconds_left <= 0:
            self._out_of_time()
        elif budget.patience is not None and self._stalled(budget.patience):
            self.reason = f"the estimate improved by less than 1% over {budget.patience} trials"
        return bool(self.reason)

    def nothing_left(self) -> None:
        """To be called when no task may have any more trials."""
        patience = self.budget.task_patience
        if all(arm.complete for state in self._states for arm in state.arms):
            self.reason = COMPLETE
        elif patience is not None and any(s.rests(patience) for s in self._states):
            self.reason = f"no task is left that improved by 1% over its last {patience} trials"
        else:
            self.reason = "nothing is left to try"

    def _out_of_time(self) -> None:
        self.reason = f"the time budget of {self.budget.seconds:.0f} s is spent"

    def _stalled(self, trials: int) -> bool:
        """Without a gain, although the tasks that make up most of the latency have had a round."""
        if not stalled(self._states, self._trials, trials):
            return False
        whole = estimate(self._states)
        heavy = [s for s in self._states if s.task.weight * s.best > HEAVY * whole]
        most, patience = self.budget.per_task, self.budget.task_patience
        return all(len(s.trials) >= BATCH or not is_open(s, most, patience) for s in heavy)
