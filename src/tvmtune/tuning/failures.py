"""What failed and why, and when so much fails that going on is pointless."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvmtune.tuning.state import TaskState
    from tvmtune.types import Trial

LATEST = 100
"""Trials over which the rate of failures is taken."""
FEWEST = 48
"""Trials before which there is no rate."""


def by_stage(trials: Iterable[Trial]) -> dict[str, tuple[int, str]]:
    """How many trials failed at each stage, with the first message of each."""
    found: dict[str, tuple[int, str]] = {}
    for trial in trials:
        if trial.error:
            count, message = found.get(trial.error["stage"], (0, trial.error["message"]))
            found[trial.error["stage"]] = (count + 1, message)
    return found


def too_many(trials: Sequence[Trial], states: Sequence[TaskState], rate: float) -> str | None:
    """Why the session has to end, if more than ``rate`` of the latest trials of its run failed.

    A task of which nothing has ever worked is a matter of its own, unless nothing works at all: it is
    given up (:data:`tvmtune.tuning.scheduler.GIVE_UP`), and the others go on.
    """
    if any(t.ok for t in trials):
        sound = {s.task.key for s in states if s.leader is not None}
        trials = [t for t in trials if t.task in sound]
    latest = trials[-LATEST:]
    failed = [t for t in latest if not t.ok]
    if len(latest) < FEWEST or len(failed) <= rate * len(latest):
        return None
    first = "; ".join(
        f"{count} at {stage}: {message[:150]}"
        for stage, (count, message) in by_stage(latest).items()
    )
    return f"{len(failed)} of the last {len(latest)} trials failed, the first of each kind: {first}"
