"""CPU time that other processes used while something was timed."""

from __future__ import annotations

import os
import time


class BackgroundLoad:
    """Measures from its creation on."""

    def __init__(self) -> None:
        self._start = _busy_seconds(), time.process_time(), time.perf_counter()

    def share(self) -> float | None:
        """Fraction of all CPUs' time that other processes used, from 0 to 1; None if unknown."""
        busy, own, start = self._start
        now = _busy_seconds()
        wall = time.perf_counter() - start
        if busy is None or now is None or wall <= 0:
            return None
        others = now - busy - (time.process_time() - own)
        return min(1.0, max(0.0, others / wall / (os.cpu_count() or 1)))


def _busy_seconds() -> float | None:
    """CPU seconds since boot that were not idle, over all CPUs; None if unknown."""
    import psutil  # here: boards lack it, and do not measure this

    try:
        times = psutil.cpu_times()
    except (OSError, ValueError, psutil.Error):
        return None
    # On Linux, user time includes that of guests, and waiting for a disk is idle time.
    fields = times._asdict()
    not_busy = ("idle", "iowait", "guest", "guest_nice")
    return float(sum(seconds for name, seconds in fields.items() if name not in not_busy))
