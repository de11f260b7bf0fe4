"""Fewer points for a chart than a log has trials, chosen so that the chart stays true."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, TypeVar

Item = TypeVar("Item")


def thinned(items: Sequence[Item], most: int) -> list[Item]:
    """At most ``most`` of the items, evenly spaced, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    step = (len(items) - 1) / (most - 1)
    return [items[round(n * step)] for n in range(most)]


def ranges(count: int, most: int) -> list[range]:
    """``count`` consecutive numbers in at most ``most`` ranges of about the same size."""
    parts = min(count, most)
    return [range(count * n // parts, count * (n + 1) // parts) for n in range(parts)]


def extremes(values: Sequence[float | None]) -> dict[str, Any] | None:
    """Minimum, median and number of the values that are not None; None if all are."""
    known = [v for v in values if v is not None]
    if not known:
        return None
    return {"low": min(known), "median": statistics.median(known), "count": len(known)}
