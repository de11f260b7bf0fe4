"""How long rounds take, from which follows what the next one may take."""

from __future__ import annotations

PROPOSING = 0.25
"""Proposing a batch may take this part of the time that measuring one takes."""
LEAST = 0.1
"""Seconds that proposing may take in any case."""
WEIGHT = 0.3
"""Of the newest value in an exponential moving average."""

Key = tuple[str, str]
"""Workload and name of an implementation."""


class Average:
    """Seconds per candidate: a moving average for each implementation, and one of all."""

    def __init__(self) -> None:
        self._of: dict[Key | None, float] = {}

    def add(self, keys: set[Key], count: int, seconds: float) -> None:
        """``count`` candidates of ``keys`` took ``seconds`` together."""
        value = seconds / count
        for key in (keys if len(keys) == 1 else set()) | {None}:
            before = self._of.get(key, value)
            self._of[key] = before + WEIGHT * (value - before)

    def of(self, key: Key | None) -> float | None:
        """Of the implementation, or of all while it has none of its own."""
        return self._of.get(key, self._of.get(None))


class Pace:
    """What a session knows of its own speed."""

    def __init__(self) -> None:
        self.measuring = Average()
        """Building and timing."""
        self.rounds = Average()
        """All of a round: proposing, measuring, checking of the leaders."""

    def proposing(self, key: Key, count: int) -> float | None:
        """Seconds that proposing ``count`` candidates may take; None while nothing was measured."""
        each = self.measuring.of(key)
        return None if each is None else max(LEAST, PROPOSING * each * count)

    def fitting(self, key: Key | None, count: int, seconds: float) -> int:
        """How many of ``count`` candidates a round of ``seconds`` has room for."""
        each = self.rounds.of(key)
        return count if not each else max(0, min(count, int(seconds / each)))
