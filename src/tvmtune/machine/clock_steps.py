"""Durations that are taken by the time of day, as TVM's timer for CPUs takes them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

ATTEMPTS = 5
"""Measurements before a clock that is stepped again and again is an error."""
ALLOWED = 1e-3
"""Seconds by which two clocks may differ that are read one after the other: the process may have been
interrupted in between."""


def without_step(measure: Callable[[], T], ahead_there: Callable[[], float] | None = None) -> T:
    """The result of ``measure``, called again if the time of day was set meanwhile, or the machine was
    suspended: a kernel would seem to have taken an hour, or less than nothing.

    The monotonic clock, which nobody can set, tells. Both are slewed alike. ``ahead_there`` is
    :func:`ahead` of the machine that measures, by default this one.
    """
    read = ahead_there or ahead
    for _ in range(ATTEMPTS):
        before = read()
        result = measure()
        if abs(read() - before) <= ALLOWED:
            return result
    raise RuntimeError(f"the system's clock was set during each of {ATTEMPTS} measurements")


def ahead() -> float:
    """Seconds by which the time of day is ahead of the monotonic clock."""
    return time.time() - time.monotonic()
