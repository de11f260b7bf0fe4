"""Failures by stage, and when a session with too many of them must end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvmtune.tuning.state import TaskState
    from tvmtune.types import Trial

WINDOW = 100
"""Trials over which the failure rate is computed."""
MIN_TRIALS = 48
"""Trials before the first rate."""


def by_stage(trials: Iterable[Trial]) -> dict[str, tuple[int, str]]:
    """Number of failed trials at each stage, with the first message of each."""
    stages: dict[str, tuple[int, str]] = {}
    for trial in trials:
        if trial.error:
            count, message = stages.get(trial.error["stage"], (0, trial.error["message"]))
            stages[trial.error["stage"]] = (count + 1, message)
    return stages


def too_many(trials: Sequence[Trial], states: Sequence[TaskState], rate: float) -> str | None:
    """Why the session must end, if more than ``rate`` of the latest trials of its run failed.

    A task without a single success does not count, unless nothing works at all: it is given up
    (:data:`tvmtune.tuning.scheduler.GIVE_UP`), and the others continue.
    """
    if any(t.ok for t in trials):
        sound = {s.task.key for s in states if s.incumbent is not None}
        trials = [t for t in trials if t.task in sound]
    latest = trials[-WINDOW:]
    failed = [t for t in latest if not t.ok]
    if len(latest) < MIN_TRIALS or len(failed) <= rate * len(latest):
        return None
    first = "; ".join(
        f"{count} at {stage}: {message[:150]}"
        for stage, (count, message) in by_stage(latest).items()
    )
    return f"{len(failed)} of the last {len(latest)} trials failed, the first of each kind: {first}"
