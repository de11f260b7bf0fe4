"""The one measure of error, for kernels and whole networks alike."""

from __future__ import annotations

import numpy as np

TOLERANCE = 1e-4
"""What float32 outputs may differ by, in terms of :func:`relative_error`."""


def relative_error(got: np.ndarray, want: np.ndarray, scale: float | None = None) -> float:
    """max|got - want| / max|want|, the one measure of error; shapes must be equal.

    ``scale`` stands in for max|want| where ``want`` is only a part. A reference of nothing but
    zeros is compared absolutely. Infinite if a value is NaN or infinite where the reference's is
    not.
    """
    if want.size == 0:
        return 0.0
    left, right = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(right)
    # Attention masks may hold infinities: those have to be met exactly.
    same = np.array_equal(left[~finite], right[~finite], equal_nan=True)
    if not same or not np.isfinite(left[finite]).all():
        return float("inf")
    if not finite.any():
        return 0.0
    if scale is None:
        scale = float(np.abs(right[finite]).max())
    return float(np.abs(left[finite] - right[finite]).max()) / (scale or 1.0)
