"""Ending tasks for certain."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

SOON = 1.0
"""Seconds between two cancellations of a task that has nothing to tidy up."""
LATER = 15.0
"""The same where it has."""


async def end(tasks: Iterable[asyncio.Task[Any]], every: float = SOON) -> None:
    """Cancel tasks until all have ended, every so many seconds.

    Before Python 3.12, ``wait_for`` may lose a cancellation that comes together with what it waits for.
    """
    waiting = set(tasks)
    while waiting:
        for task in waiting:
            task.cancel()
        _, waiting = await asyncio.wait(waiting, timeout=every)
