"""Sums of values times constant factors, for fast algorithms such as Winograd's and Strassen's."""

from __future__ import annotations

import functools
import operator
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


def combine_in_pairs(factors: Factors, row: Any, load: Callable[[int], Any]) -> Any:
    """As :func:`combine`, with the sums of even and of odd columns added last. Rows for a point and for
    its negative then share both sums: F(4x4, 3x3) rounds a third less."""
    from tvm import tirx

    zero = tirx.const(0.0, "float32")
    result = None
    for index in reversed(range(len(factors))):
        even, odd = (
            [(c, f) for c, f in enumerate(factors[index]) if f and c % 2 == n] for n in (0, 1)
        )
        total = zero
        for part in (even, odd):
            if not part:
                continue
            sign = 1 if part[0][1] > 0 else -1
            terms = [load(column) * tirx.const(sign * factor, "float32") for column, factor in part]
            value = functools.reduce(operator.add, terms)
            total = total + value if sign > 0 else total - value
        result = total if result is None else tirx.Select(row == index, total, result)
    return result
