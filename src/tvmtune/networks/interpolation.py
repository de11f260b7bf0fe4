"""Interpolation in Relax, for every importer: a weighted sum of a few rows, axis by axis.

It is separable and linear, so that every mode has a few taps per axis: 1 (nearest), 2 (linear) or 4
(cubic). Importers differ in where the positions of the result are in the input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from tvmtune.networks.relax_operators import dtype, shape

Taps = tuple[list[np.ndarray], list[np.ndarray]]
"""For each tap, the index into the axis and the factor, both per position of the result."""

ALPHA = -0.75
"""The usual parameter of Keys' kernel."""


def nearest(places: np.ndarray, extent: int) -> Taps:
    """The rows at whole ``places`` of an axis of ``extent`` rows."""
    return _inside([places], extent), [np.ones(len(places))]


def linear(x: np.ndarray, extent: int) -> Taps:
    """The rows before and after the coordinates ``x``."""
    low = np.floor(x)
    return _inside([low, low + 1], extent), [1 - (x - low), x - low]


def cubic(
    x: np.ndarray, extent: int, *, alpha: float = ALPHA, exclude_outside: bool = False
) -> Taps:
    """Two rows on either side of the coordinates ``x``; with ``exclude_outside``, only those that
    exist."""
    low = np.floor(x)
    places = [low + offset for offset in (-1, 0, 1, 2)]
    factors = [keys_kernel(np.abs(x - place), alpha) for place in places]
    if exclude_outside:
        inside = [(place >= 0) & (place < extent) for place in places]
        factors = [np.where(i, f, 0.0) for i, f in zip(inside, factors, strict=True)]
        total = sum(factors)
        factors = [f / total for f in factors]
    return _inside(places, extent), factors


def keys_kernel(distance: np.ndarray, alpha: float) -> np.ndarray:
    """Keys' cubic convolution kernel (1981), for distances of up to 2."""
    near = ((alpha + 2) * distance - (alpha + 3)) * distance * distance + 1
    far = ((alpha * distance - 5 * alpha) * distance + 8 * alpha) * distance - 4 * alpha
    return np.where(distance <= 1, near, far)


def weighted_sum(emit: Any, x: Any, plan: Mapping[int, Taps]) -> Any:
    """``x`` with the rows of each axis of ``plan`` replaced by sums, computed in its dtype."""
    for axis, (places, factors) in plan.items():
        total = None
        for taken, factor in zip(places, factors, strict=True):
            ids = relax.const(taken, "int64")
            part = emit(relax.op.take(x, ids, axis=axis, mode="clip"))
            if not (factor == 1).all():
                aligned = factor.reshape([-1 if i == axis else 1 for i in range(len(shape(x)))])
                weight = relax.const(aligned.astype(dtype(x)), dtype(x))
                part = emit(relax.op.multiply(part, weight))
            total = part if total is None else emit(relax.op.add(total, part))
        x = total
    return x


def _inside(places: Sequence[np.ndarray], extent: int) -> list[np.ndarray]:
    return [np.clip(place, 0, extent - 1).astype("int64") for place in places]
