"""Wait until other processes leave the machine alone."""

from __future__ import annotations

import os
import sys
import time

from tvmtune.machine.background_load import BackgroundLoad

BUSY = 0.1
"""Fraction of all CPUs' time from which a machine is busy; ``tvmtune bench`` warns from it, too."""
WINDOW = 3.0
"""Seconds over which it is measured."""


def load(seconds: float = WINDOW) -> dict[str, float | None]:
    """``average``, the load average of the last minute, and ``busy``, the fraction of all CPUs' time
    that other processes used in the next ``seconds`` (None if unknown)."""
    background = BackgroundLoad()
    time.sleep(seconds)
    return {"average": os.getloadavg()[0], "busy": background.share()}


def wait(limit: float) -> dict[str, float | None]:
    """Wait until the machine is quiet, at most ``limit`` seconds; returns the last :func:`load`.

    The use of the CPUs decides, not the load average, which still counts this benchmark's own compiler
    a minute later.
    """
    end = time.monotonic() + limit
    said = False
    while True:
        found = load()
        if (found["busy"] or 0.0) < BUSY or time.monotonic() > end:
            return found
        if not said:
            print(
                f"waiting up to {limit:.0f} s: others use {found['busy']:.0%} of the CPUs",
                file=sys.stderr,
            )
            said = True
