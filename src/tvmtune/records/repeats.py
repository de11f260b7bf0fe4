"""What becomes of a trial that was timed once more."""

from __future__ import annotations

from collections.abc import Sequence

from tvmtune.types import Trial


def add_repeats(trial: Trial, seconds: Sequence[float]) -> None:
    """Add the repeats of a second measurement to a trial's own.

    They take the place of those of a trial that was measured while the machine was slow.
    """
    if trial.extra.pop("drift", None) is not None:
        trial.seconds = []
    trial.seconds = [*trial.seconds, *seconds]
    trial.extra["remeasured"] = trial.extra.get("remeasured", 0) + len(seconds)
