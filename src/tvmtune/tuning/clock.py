"""The time since a session began."""

from __future__ import annotations

import time


class Clock:
    """``begun``: start of the session by :func:`time.monotonic`, now by default."""

    def __init__(self, begun: float | None = None) -> None:
        self.begun = time.monotonic() if begun is None else begun

    @property
    def elapsed(self) -> float:
        """Seconds."""
        return time.monotonic() - self.begun
