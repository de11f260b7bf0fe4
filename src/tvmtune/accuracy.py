"""The measure of error and its tolerances, for kernels and whole networks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

TOLERANCE = 1e-4
"""The largest :func:`relative_error` of float32 outputs, and of integers that were rounded from floats.
Integers that both sides compute exactly must be equal."""

HALF_KERNEL = 2e-3
"""The same for one float16 kernel, which computes in float32 and rounds once: two units in the last
place of the largest value."""

HALF_NETWORK = 1e-1
"""The same for a float16 network: each layer rounds, by up to 5e-4, and later layers amplify it.
MobileNet is off by 3e-2 from float32 arithmetic with the same weights."""

BRAIN_KERNEL = 1.6e-2
"""The same for one bfloat16 kernel, which has three bits fewer than float16."""

BRAIN_NETWORK = 5e-1
"""The same for a bfloat16 network, whose layers round by up to 4e-3. MobileNet is off by 0.26 and
Inception v3 by 0.28 from float32 arithmetic with the same weights; outputs of different inputs differ
by more than 1."""

INT8_NETWORK = 1e-1
"""The same for a network that rounds to bytes between its layers. A difference in a float's last bit
may become a whole step, and later layers amplify it: ONNX Runtime's integer kernels are off by 0.03 to
0.05 from its float kernels for ResNet-18 (three inputs)."""


class _Tolerance(NamedTuple):
    kernel: float
    network: float


_TOLERANCES = {
    "float16": _Tolerance(HALF_KERNEL, HALF_NETWORK),
    "bfloat16": _Tolerance(BRAIN_KERNEL, BRAIN_NETWORK),
    "int8": _Tolerance(TOLERANCE, INT8_NETWORK),
}


def tolerance(dtype: str, *, network: bool = False) -> float:
    """The largest error of a kernel, or of a whole network, that computes in this dtype."""
    allowed = _TOLERANCES.get(dtype, _Tolerance(TOLERANCE, TOLERANCE))
    return allowed.network if network else allowed.kernel


def relative_error(got: np.ndarray, want: np.ndarray, scale: float | None = None) -> float:
    """max|got - want| / max|want|, for arrays of one shape.

    ``scale`` stands in for max|want| where ``want`` is only a part. A reference of only zeros is
    compared absolutely. Infinite if a value is NaN or infinite where the reference's is not.
    """
    if want.size == 0:
        return 0.0
    left, right = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(right)
    # Attention masks may hold infinities, which have to match exactly.
    same = np.array_equal(left[~finite], right[~finite], equal_nan=True)
    if not same or not np.isfinite(left[finite]).all():
        return float("inf")
    if not finite.any():
        return 0.0
    if scale is None:
        scale = float(np.abs(right[finite]).max())
    return float(np.abs(left[finite] - right[finite]).max()) / (scale or 1.0)


def differing(got: np.ndarray, want: np.ndarray) -> float:
    """The share of values that differ, of arrays of one shape."""
    return float(np.mean(got != want)) if want.size else 0.0


def integer_error(got: np.ndarray, want: np.ndarray) -> float:
    """max|got - want| of integers or booleans of one shape: 0 if all are equal, else at least 1."""
    different = got != want
    if not different.any():
        return 0.0
    left, right = got[different].astype(np.float64), want[different].astype(np.float64)
    return max(1.0, float(np.abs(left - right).max()))  # floats may round neighbors to one value
