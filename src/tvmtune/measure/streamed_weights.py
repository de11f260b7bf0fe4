"""Time kernels whose weights are too large for the caches, as a network runs them.

Emptying the caches between calls makes weights cold, but it lets the memory rest, too: 38 MB then came
at 64 GB/s on a Zen 4 whose memory gives 26 to 50 for long, and a kernel that reads more to compute
less seemed twice as fast as in the network. So calls follow each other, each with another copy of the
weights.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tvmtune.arrays import nbytes
from tvmtune.machine import cpu_caches
from tvmtune.machine.threads import allowed_cpus
from tvmtune.types import TensorSpec

LARGE = 1 << 23
"""Bytes of a kernel's weights from which on it is timed in this way."""
CACHE_SIZES = 4
"""Size of all copies together, in sizes of the last-level cache: some of these keep a part of what
streams through them."""
MOST = 1 << 29
"""Bytes of all copies together, at most."""
UNKNOWN_CACHE = 1 << 25
"""Bytes of a last-level cache that the system does not describe."""


def copies(args: Sequence[TensorSpec], threads: int) -> int:
    """How many copies of its weights a kernel should be timed with that so many threads compute; 0 if
    they are not large, or so many that their copies would take too much memory.

    All arguments but the first and the last count as weights, as where caches are flushed: those two
    stay in the caches between layers.
    """
    size = sum(map(nbytes, args[1:-1]))
    if size < LARGE:
        return 0
    count = max(1, math.ceil(CACHE_SIZES * last_level_caches(threads) / size))
    return count if count == 1 or count * size <= MOST else 0


def timer(
    call: Callable[..., Any], arguments: Callable[[], Sequence[Sequence[Any]]]
) -> Callable[[int], list[float]]:
    """``measure(repeat)``: seconds of each call, with each of the ``arguments`` in turn, which are made
    for the first one."""

    def forever() -> Iterator[Sequence[Any]]:
        yield from itertools.cycle(arguments())

    turns = forever()

    def measure(repeat: int) -> list[float]:
        chosen = [next(turns) for _ in range(repeat + 1)]
        times = []
        for each in chosen:
            began = time.perf_counter()
            call(*each)
            times.append(time.perf_counter() - began)
        return times[1:]  # the first call comes after a pause

    return measure


@functools.cache
def last_level_caches(threads: int) -> int:
    """Bytes of the largest caches of this process's CPUs, of no more of them than there are threads."""
    sizes: dict[str, int] = {}
    for cpu in allowed_cpus():
        if caches := cpu_caches.of_cpu(cpu):
            largest = max(caches, key=lambda cache: cache.size)
            sizes[largest.cpus] = largest.size
    return sum(sorted(sizes.values(), reverse=True)[:threads]) or UNKNOWN_CACHE
