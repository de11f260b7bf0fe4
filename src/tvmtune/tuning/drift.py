"""Drift of the machine's speed, from a fixed kernel timed at intervals."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

READING_INTERVAL = 20.0
"""Seconds between two readings."""
DRIFT_RATIO = 1.1
"""From this slowdown on, a candidate's time says more about the machine than about the candidate."""
READINGS_TO_RESET = 9
"""After this many consecutive readings that agree, a slow machine counts as normal: it may have been
fast in its first seconds only."""
MAX_RELATIVE_SPREAD = 0.05
"""Readings agree if the slowest is at most this fraction above the fastest."""


@dataclass(frozen=True)
class Reading:
    """Time of the baseline kernel relative to its first timing."""

    ratio: float
    changed: bool
    """Whether the machine has become slow, or normal again."""


class Drift:
    """The machine's speed over a session."""

    def __init__(self) -> None:
        self._due = 0.0
        self._latest: deque[float] = deque(maxlen=READINGS_TO_RESET)
        self.fastest = float("inf")
        """The reference for later readings."""
        self.slowest = 0.0
        self.slowdown = 1.0
        """The latest reading, relative to the fastest."""

    @property
    def slow(self) -> bool:
        return self.slowdown > DRIFT_RATIO

    @property
    def spread(self) -> float:
        """Fraction by which the slowest reading exceeds the fastest."""
        return max(0.0, self.slowest / self.fastest - 1.0) if self.slowest else 0.0

    def look(self, measure: Callable[[], float | None]) -> Reading | None:
        """A reading, if one is due and the device has a baseline kernel.

        ``measure`` returns the kernel's time relative to its first timing, or None.
        """
        now = time.monotonic()
        if now < self._due:
            return None
        self._due = now + READING_INTERVAL
        ratio = measure()
        if ratio is None:
            return None
        # One disturbance is not drift, and one lucky reading is not a new reference.
        if ratio > DRIFT_RATIO * self.fastest:
            ratio = min(ratio, measure() or ratio)
        elif ratio < self.fastest / DRIFT_RATIO and self._latest:
            ratio = max(ratio, measure() or ratio)
        before = self.slow
        self._latest.append(ratio)
        self.fastest = min(self.fastest, ratio)
        self.slowest = max(self.slowest, ratio)
        agree = max(self._latest) <= (1 + MAX_RELATIVE_SPREAD) * min(self._latest)
        if len(self._latest) == READINGS_TO_RESET and agree:
            self.fastest = min(self._latest)
        self.slowdown = ratio / self.fastest
        return Reading(ratio, self.slow != before)
