"""How long rounds take, which determines how large the next one may be."""

from __future__ import annotations

PROPOSING = 0.25
"""Proposing a batch may take this fraction of the time that measuring it takes."""
MIN_PROPOSAL_SECONDS = 0.1
"""Seconds that proposing may always take."""
WEIGHT = 0.3
"""Of the newest value in an exponential moving average."""

Key = tuple[str, str]
"""Workload and name of an implementation."""


class Average:
    """Seconds per candidate: a moving average for each implementation, and one over all."""

    def __init__(self) -> None:
        self._of: dict[Key | None, float] = {}

    def add(self, keys: set[Key], count: int, seconds: float) -> None:
        """``count`` candidates of ``keys`` together took ``seconds``."""
        value = seconds / count
        for key in (keys if len(keys) == 1 else set()) | {None}:
            before = self._of.get(key, value)
            self._of[key] = before + WEIGHT * (value - before)

    def of(self, key: Key | None) -> float | None:
        """The implementation's average, or the overall one while it has none."""
        return self._of.get(key, self._of.get(None))


class RoundTimes:
    """Moving averages of the time that a session's rounds take."""

    def __init__(self) -> None:
        self.measuring = Average()
        """Building and timing."""
        self.rounds = Average()
        """Whole rounds: proposing, measuring, confirming the incumbents."""

    def proposal_seconds(self, key: Key, count: int) -> float | None:
        """Time limit for proposing ``count`` candidates; None before anything was measured."""
        each = self.measuring.of(key)
        return None if each is None else max(MIN_PROPOSAL_SECONDS, PROPOSING * each * count)

    def candidates_within(self, seconds: float, key: Key | None, count: int) -> int:
        """How many of ``count`` candidates a round of ``seconds`` has time for."""
        each = self.rounds.of(key)
        return count if not each else max(0, min(count, int(seconds / each)))
