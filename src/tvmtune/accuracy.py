"""The one measure of error, for kernels and whole networks alike."""

from __future__ import annotations

import numpy as np

TOLERANCE = 1e-4
"""What float32 outputs may differ by, in terms of :func:`relative_error`."""

HALF_KERNEL = 2e-3
"""The same for one float16 kernel, which computes in float32 and rounds once: two units in the last
place of the largest value."""

HALF_NETWORK = 1e-1
"""The same for a float16 network: each of its layers rounds, by up to 5e-4, and those that follow
amplify it. MobileNet is off by 3e-2 from float32 arithmetic with the same weights."""

BRAIN_KERNEL = 1.6e-2
"""The same for one bfloat16 kernel, by the same count: it has three bits less."""

BRAIN_NETWORK = 5e-1
"""The same for a bfloat16 network, whose layers round by up to 4e-3. MobileNet is off by 0.26 and
Inception v3 by 0.28 from float32 arithmetic with the same weights; that of other inputs is off by
more than 1."""


def tolerance(dtype: str, *, network: bool = False) -> float:
    """What outputs that were computed in this dtype may differ by, of a kernel or of a whole
    network."""
    if dtype == "float16":
        return HALF_NETWORK if network else HALF_KERNEL
    if dtype == "bfloat16":
        return BRAIN_NETWORK if network else BRAIN_KERNEL
    return TOLERANCE


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
