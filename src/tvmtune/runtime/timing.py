"""Wall-clock timing, the same for libraries and for the runtimes that they are compared with."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

WARM_UP = 0.05
"""Seconds of untimed calls. After a rest the first call takes up to 50% longer; and if the operating
system wakes both threads on one CPU, calls take twice their time until it separates them."""

_WINDOW = 0.02
"""Seconds over which CPU time is measured: the system's accounting lags by a few milliseconds."""
_QUIET = 0.1
"""CPU seconds per second below which the process counts as idle."""
_MAX_REST = 2.0
"""Longest rest, in seconds."""

Invoke = Callable[[int], float]
"""``invoke(count) -> seconds``: run ``count`` times on inputs that were set before."""


def warm_up(invoke: Invoke, seconds: float = WARM_UP) -> float:
    """Run at least once and for at least ``seconds``; returns the seconds of the last call."""
    end = time.perf_counter() + seconds
    while True:
        last = invoke(1)
        if time.perf_counter() >= end:
            return last


def calls_per_repeat(invoke: Invoke, number: int, min_repeat_ms: float) -> int:
    """``number``, or more calls if one repeat needs them to last ``min_repeat_ms``."""
    if min_repeat_ms <= 0:
        return number
    calls = number
    while True:
        lasted = 1e3 * invoke(calls)
        if lasted >= min_repeat_ms:
            return calls
        # Aim 10% too high, so that the next attempt is usually the last.
        wanted = calls * 1.1 * min_repeat_ms / max(lasted, 1e-6)
        calls = min(max(calls + 1, int(wanted)), calls * 100)


def sample(invoke: Invoke, calls: int) -> float:
    """Seconds per call over ``calls`` calls, with Python's garbage collector off."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        return invoke(calls) / calls
    finally:
        if enabled:
            gc.enable()


def measure(
    invoke: Invoke, *, number: int, repeat: int, min_repeat_ms: float = 0, warmup: float = WARM_UP
) -> list[float]:
    """Seconds per call, one value per repeat."""
    warm_up(invoke, warmup)
    calls = calls_per_repeat(invoke, number, min_repeat_ms)
    return [sample(invoke, calls) for _ in range(repeat)]


def rest() -> None:
    """Wait until this process's threads sleep, for at most two seconds."""
    end = time.perf_counter() + _MAX_REST
    calm = 0
    while calm < 2 and time.perf_counter() < end:
        cpu, wall = time.process_time(), time.perf_counter()
        time.sleep(_WINDOW)
        used = (time.process_time() - cpu) / (time.perf_counter() - wall)
        calm = calm + 1 if used < _QUIET else 0
