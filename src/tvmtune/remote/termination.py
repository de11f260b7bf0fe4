"""Cancel asyncio tasks reliably."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

CANCEL_INTERVAL = 1.0
"""Seconds between two cancellations of a task without cleanup."""
CLEANUP_CANCEL_INTERVAL = 15.0
"""The same for a task with cleanup."""


async def end(tasks: Iterable[asyncio.Task[Any]], every: float = CANCEL_INTERVAL) -> None:
    """Cancel ``tasks`` every so many seconds until all have ended.

    Before Python 3.12, ``wait_for`` may lose a cancellation that arrives together with its result.
    """
    waiting = set(tasks)
    while waiting:
        for task in waiting:
            task.cancel()
        _, waiting = await asyncio.wait(waiting, timeout=every)
