"""Time kernels whose weights are too large for the caches, as a network runs them.

Emptying the caches between calls makes weights cold, but it lets the memory rest, too: 38 MB then came
at 64 GB/s on a Zen 4 whose memory gives 26 to 50 for long, and a kernel that reads more to compute
less seemed twice as fast as in the network. So calls follow each other, each with another copy of the
weights.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from tvmtune.arrays import numpy_dtype
from tvmtune.types import TensorSpec, product

LARGE = 1 << 23
"""Bytes of a kernel's weights from which on it is timed in this way."""
PASSES = 4
"""Size of all copies together, in sizes of the last-level cache: some of them keep a part of what
streams through them."""
MOST = 1 << 29
"""Bytes of all copies together, at most."""
UNKNOWN_CACHE = 1 << 25
"""Bytes of a last-level cache that the device's description lacks."""


def copies(args: Sequence[TensorSpec], cache: int) -> int:
    """How many copies of its weights a kernel should be timed with; 0 if they are not large.

    Weights are all arguments but the first and the last, which stay in the caches between layers.
    ``cache``: bytes of the last-level cache.
    """
    size = sum(map(_bytes, args[1:-1]))
    if size < LARGE:
        return 0
    return max(1, math.ceil(min(PASSES * cache, MOST) / size))


def timer(
    call: Callable[..., Any], arguments: Sequence[Sequence[Any]]
) -> Callable[[int], list[float]]:
    """``measure(repeat)``: seconds of each call, with each of the ``arguments`` in turn."""
    turns = itertools.cycle(arguments)

    def measure(repeat: int) -> list[float]:
        times = []
        for _ in range(repeat + 1):
            chosen = next(turns)
            began = time.perf_counter()
            call(*chosen)
            times.append(time.perf_counter() - began)
        return times[1:]  # the first call comes after a pause

    return measure


def _bytes(spec: TensorSpec) -> int:
    return product(spec.shape) * numpy_dtype(spec.dtype).itemsize
