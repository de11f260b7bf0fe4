"""Whether the machine keeps its speed: a kernel that never changes is timed at intervals."""

from __future__ import annotations

import time
from collections.abc import Callable

EVERY = 20.0
"""Seconds between two readings."""
SLOWER = 1.1
"""From this factor on, a candidate's time says more about the machine than about the candidate."""


class Drift:
    """The machine's speed over a session.

    ``measure`` gives the kernel's time relative to its first timing, or None where that is unknown;
    ``report`` hears of each reading, and whether it made the machine slow or quick again.
    """

    def __init__(
        self, measure: Callable[[], float | None], report: Callable[[float, bool], None]
    ) -> None:
        self._measure = measure
        self._report = report
        self._due = 0.0
        self.fastest = float("inf")
        self.slowest = 0.0
        self.slowdown = 1.0
        """The latest reading, relative to the fastest."""

    @property
    def slow(self) -> bool:
        return self.slowdown > SLOWER

    @property
    def spread(self) -> float:
        """By which part the slowest reading lies above the fastest."""
        return self.slowest / self.fastest - 1.0 if self.slowest else 0.0

    def look(self) -> None:
        """Take a reading if one is due."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + EVERY
        ratio = self._measure()
        if ratio is not None and ratio > SLOWER * self.fastest:
            again = self._measure()  # one disturbance is no drift
            ratio = min(ratio, again or ratio)
        if ratio is None:
            return
        before = self.slow
        self.fastest = min(self.fastest, ratio)
        self.slowest = max(self.slowest, ratio)
        self.slowdown = ratio / self.fastest
        self._report(ratio, self.slow != before)
