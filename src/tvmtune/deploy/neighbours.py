"""What other processes did to this machine while something was timed."""

from __future__ import annotations

import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")


class Neighbours:
    """Watches from its creation on."""

    def __init__(self) -> None:
        self._start = _used(), time.process_time(), time.perf_counter()

    def share(self) -> float | None:
        """The part of all CPUs' time that other processes have used, from 0 to 1.

        None where the system does not tell.
        """
        used, own, start = self._start
        now = _used()
        wall = time.perf_counter() - start
        if used is None or now is None or wall <= 0:
            return None
        others = now - used - (time.process_time() - own)
        return min(1.0, max(0.0, others / wall / (os.cpu_count() or 1)))


def _used() -> float | None:
    """CPU seconds that were not idle since the machine started, all CPUs together."""
    try:
        fields = _STAT.read_text().split("\n", 1)[0].split()[1:]
        # user, nice, system, idle, iowait, irq, softirq, steal; guest time is in user already
        ticks = [int(field) for field in fields[:8]]
        return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
