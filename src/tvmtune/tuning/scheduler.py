"""Which task gets the next trials.

``effect`` looks for the largest expected gain in end-to-end latency per trial, after the gradient of
Ansor's task scheduler (Zheng et al., OSDI 2020, section 6): what recent trials gained, and what the
task could still gain before it meets the device's peak.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvmtune.errors import UsageError, nearest
from tvmtune.tuning.state import Arm, TaskState

SCHEDULERS = ("effect", "round-robin", "sequential")
WINDOW = 32
"""Trials over which the recent gain of an arm is taken."""
EXPLORE = 17
"""Trials that every implementation of a task gets before a slower one rests: the default schedule
and one round."""
HOPELESS = 1.3
"""An implementation slower than the task's best by this factor after :data:`EXPLORE` trials rests."""
GIVE_UP = 48
"""Failures, with never a success, after which an implementation is left out."""


def check(name: str) -> str:
    """The name itself, or :class:`UsageError`."""
    if name not in SCHEDULERS:
        raise UsageError(f"scheduler '{name}' is not known.{nearest(name, list(SCHEDULERS))}")
    return name


def pick(
    name: str,
    states: Sequence[TaskState],
    per_task: int | None = None,
    peak: float | None = None,
    patience: int | None = None,
) -> tuple[TaskState, Arm] | None:
    """The task and implementation to try next; None when nothing is left to try.

    ``per_task``: the most trials that a task gets; ``peak``: the device's best rate in GFLOPS, if it
    is known; ``patience``: trials without a gain after which a task rests.
    """
    open_states = [s for s in states if is_open(s, per_task, patience)]
    if not open_states:
        return None
    top = ceiling(states, peak)
    unknown = [s for s in open_states if s.best == float("inf")]
    if unknown:
        state = max(unknown, key=lambda s: (s.task.weight * s.task.flop, -s.task.index))
    elif name == "sequential":
        state = open_states[0]
    elif name == "round-robin":
        state = min(open_states, key=lambda s: (s.begun, s.task.index))
    else:
        state = max(open_states, key=lambda s: gain(s, choose_arm(s, top), top))
    return state, choose_arm(state, top)


def ceiling(states: Sequence[TaskState], peak: float | None) -> float | None:
    """The rate in GFLOPS that no direct algorithm will exceed, with a margin for a peak that was
    measured in a bad moment; None where the peak is not known."""
    if peak is None:
        return None
    seen = [
        s.task.flop / arm.best / 1e9 for s in states for arm in s.arms if arm.implementation.exact
    ]
    return 1.1 * max(peak, *seen, 0.0)


def gain(state: TaskState, arm: Arm, top: float | None = None) -> float:
    """Expected seconds of end-to-end latency that one more trial of the implementation saves.

    One that has had few trials may still improve by much, but a direct algorithm never beyond
    ``top``, a rate in GFLOPS.
    """
    done = arm.begun
    best = state.best
    recent = 0.0
    if len(arm.best_after) > WINDOW and arm.best_after[-WINDOW - 1] < float("inf"):
        recent = max(0.0, arm.best_after[-WINDOW - 1] - arm.best_after[-1]) / WINDOW
    room = max(0.5 * (best - _floor(state, arm, top)), 0.01 * best)
    # Hope fades as trials go by without any gain, and for one that lags behind.
    stale = sum(1 for b in arm.best_after if b == arm.best_after[-1])
    lag = best / arm.best if done >= EXPLORE else 1.0
    hope = room * lag / (done + WINDOW) / (1 + stale / WINDOW)
    return state.task.weight * (0.5 * recent * lag + hope)


def choose_arm(state: TaskState, top: float | None = None) -> Arm:
    """The implementation to try next: all that could win get their first trials, then those near.

    A direct algorithm that would have to exceed the rate ``top`` to win cannot.
    """
    arms = [a for a in state.arms if not a.exhausted] or state.arms
    arms = [a for a in arms if _floor(state, a, top) < state.best] or arms
    fresh = [a for a in arms if a.begun < EXPLORE and not _failing(a)]
    near = [a for a in arms if a.best <= HOPELESS * state.best]
    unmeasured = [a for a in fresh if not a.begun]
    if state.best == float("inf") or unmeasured:
        return min(unmeasured or fresh or arms, key=lambda a: a.begun)
    worth = [a for a in arms if a in fresh or a in near] or arms
    return max(worth, key=lambda a: gain(state, a, top))


def _floor(state: TaskState, arm: Arm, top: float | None) -> float:
    """Seconds that the implementation cannot beat, 0 where nothing is known."""
    return state.task.flop / (top * 1e9) if top and arm.implementation.exact else 0.0


def _failing(arm: Arm) -> bool:
    return len(arm.trials) >= GIVE_UP // 3 and arm.best == float("inf")


def is_open(state: TaskState, per_task: int | None, patience: int | None) -> bool:
    """Whether the task may get more trials; the limits are those of :func:`pick`."""
    if state.skipped is not None or all(a.exhausted for a in state.arms):
        return False
    if per_task is not None and state.begun >= per_task:
        return False
    return patience is None or not state.rests(patience)
