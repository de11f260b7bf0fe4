"""Whether the machine keeps its speed: a kernel that never changes is timed at intervals."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

EVERY = 20.0
"""Seconds between two readings."""
SLOWER = 1.1
"""From this factor on, a candidate's time says more about the machine than about the candidate."""
SETTLED = 9
"""Readings in a row that agree, after which a slow machine is taken for what it is: one that is quick
for its first seconds only, say."""
AGREE = 0.05
"""That readings agree: the slowest lies within this part of the quickest."""


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
        self._latest: deque[float] = deque(maxlen=SETTLED)
        self.fastest = float("inf")
        """What later readings are compared with."""
        self.slowest = 0.0
        self.slowdown = 1.0
        """The latest reading, relative to the fastest."""

    @property
    def slow(self) -> bool:
        return self.slowdown > SLOWER

    @property
    def spread(self) -> float:
        """By which part the slowest reading lies above the fastest."""
        return max(0.0, self.slowest / self.fastest - 1.0) if self.slowest else 0.0

    def look(self) -> None:
        """Take a reading if one is due."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + EVERY
        ratio = self._measure()
        if ratio is None:
            return
        # One disturbance is no drift, and one lucky reading is no new mark.
        if ratio > SLOWER * self.fastest:
            ratio = min(ratio, self._measure() or ratio)
        elif ratio < self.fastest / SLOWER and self._latest:
            ratio = max(ratio, self._measure() or ratio)
        before = self.slow
        self._latest.append(ratio)
        self.fastest = min(self.fastest, ratio)
        self.slowest = max(self.slowest, ratio)
        if len(self._latest) == SETTLED and max(self._latest) <= (1 + AGREE) * min(self._latest):
            self.fastest = min(self._latest)
        self.slowdown = ratio / self.fastest
        self._report(ratio, self.slow != before)
