"""The task scheduler: which task and implementation get the next trials.

``gradient`` looks for the largest expected gain in end-to-end latency per trial, after the gradient of
Ansor's task scheduler (Zheng et al., OSDI 2020, section 6): what recent trials gained, and what the
task could still gain before it reaches the device's peak.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvmtune.errors import UsageError, nearest
from tvmtune.tuning.state import ImplementationState, TaskState

SCHEDULERS = ("gradient", "round-robin", "sequential")
ALIASES = {"effect": "gradient"}
"""Older names, which stay accepted."""
WINDOW = 32
"""Trials over which the recent gain of an implementation is computed."""
EXPLORE = 17
"""Trials that every implementation of a task gets before slow ones rest: the default schedule and one
round."""
TOO_SLOW = 1.3
"""An implementation that is slower than the task's best by this factor after :data:`EXPLORE` trials
rests."""
GIVE_UP = 48
"""Failures without a single success after which an implementation is given up."""


def check(name: str) -> str:
    """The scheduler's canonical name; raises :class:`UsageError` for an unknown one."""
    canonical = ALIASES.get(name, name)
    if canonical not in SCHEDULERS:
        raise UsageError(f"scheduler '{name}' is not known.{nearest(name, list(SCHEDULERS))}")
    return canonical


def pick(
    name: str,
    states: Sequence[TaskState],
    per_task: int | None = None,
    peak: float | None = None,
    patience: int | None = None,
) -> tuple[TaskState, ImplementationState] | None:
    """The task and implementation to try next; None when nothing is left to try.

    ``name``: one of :data:`SCHEDULERS`; ``per_task``: maximum number of trials of a task; ``peak``: the
    device's peak rate in GFLOPS, if known; ``patience``: trials without a gain after which a task
    rests.
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
        state = max(open_states, key=lambda s: gain(s, choose_implementation(s, top), top))
    return state, choose_implementation(state, top)


def ceiling(states: Sequence[TaskState], peak: float | None) -> float | None:
    """The rate in GFLOPS that no direct algorithm will exceed, with a margin because the peak may have
    been measured at a bad moment; None if the peak is unknown."""
    if peak is None:
        return None
    rates = [
        s.task.flop / impl.best / 1e9
        for s in states
        for impl in s.implementations
        if impl.implementation.exact
    ]
    return 1.1 * max(peak, *rates, 0.0)


def gain(state: TaskState, impl: ImplementationState, top: float | None = None) -> float:
    """Expected reduction of end-to-end latency, in seconds, by one more trial of the implementation.

    With few trials so far it may still improve a lot, but a direct algorithm never beyond ``top``, a
    rate in GFLOPS.
    """
    done = impl.begun
    best = state.best
    recent = 0.0
    if len(impl.best_after) > WINDOW and impl.best_after[-WINDOW - 1] < float("inf"):
        recent = max(0.0, impl.best_after[-WINDOW - 1] - impl.best_after[-1]) / WINDOW
    room = max(0.5 * (best - _floor(state, impl, top)), 0.01 * best)
    # The expectation shrinks with each trial without a gain, and with the distance to the best.
    stale = sum(1 for b in impl.best_after if b == impl.best_after[-1])
    lag = best / impl.best if done >= EXPLORE else 1.0
    expected = room * lag / (done + WINDOW) / (1 + stale / WINDOW)
    return state.task.weight * (0.5 * recent * lag + expected)


def choose_implementation(state: TaskState, top: float | None = None) -> ImplementationState:
    """The implementation to try next: first any that could win and has had few trials, then any close
    to the best.

    A direct algorithm that would have to exceed the rate ``top`` to win cannot win.
    """
    implementations = [a for a in state.implementations if not a.exhausted] or state.implementations
    implementations = [
        a for a in implementations if _floor(state, a, top) < state.best
    ] or implementations
    fresh = [a for a in implementations if a.begun < EXPLORE and not _failing(a)]
    near = [a for a in implementations if a.best <= TOO_SLOW * state.best]
    unmeasured = [a for a in fresh if not a.begun]
    if state.best == float("inf") or unmeasured:
        return min(unmeasured or fresh or implementations, key=lambda a: a.begun)
    worth = [a for a in implementations if a in fresh or a in near] or implementations
    return max(worth, key=lambda a: gain(state, a, top))


def _floor(state: TaskState, impl: ImplementationState, top: float | None) -> float:
    """Lower bound of the implementation's latency in seconds; 0 if unknown."""
    return state.task.flop / (top * 1e9) if top and impl.implementation.exact else 0.0


def _failing(impl: ImplementationState) -> bool:
    return len(impl.trials) >= GIVE_UP // 3 and impl.best == float("inf")


def is_open(state: TaskState, per_task: int | None, patience: int | None) -> bool:
    """Whether the task may get more trials; the limits are those of :func:`pick`."""
    if state.skipped is not None or all(a.exhausted for a in state.implementations):
        return False
    if per_task is not None and state.begun >= per_task:
        return False
    return patience is None or not state.rests(patience)
