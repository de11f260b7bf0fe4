"""Sums of values times constant factors, for fast algorithms such as Winograd's and Strassen's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Factors = tuple[tuple[float, ...], ...]
"""A matrix: the factors of one sum in each row."""


def combine(factors: Factors, row: Any, load: Callable[[int], Any]) -> Any:
    """In TE, row ``row`` of ``factors`` times the vector that ``load`` reads; schedules unroll ``row``,
    so the selection and the zeros vanish."""
    from tvm import tirx

    result = None
    for index in reversed(range(len(factors))):
        total = tirx.const(0.0, "float32")
        for column, factor in enumerate(factors[index]):
            if factor:
                total = total + load(column) * tirx.const(float(factor), "float32")
        result = total if result is None else tirx.Select(row == index, total, result)
    return result
