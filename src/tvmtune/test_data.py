"""Synthetic arguments for timing kernels, the same on this machine and on a board."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmtune.types import TensorSpec, product

_block: Any = None


def fill(spec: TensorSpec, seed: int = 0) -> np.ndarray:
    """An array of ``spec``: standard-normal floats, or zeros and ones for integers (safe as indices).

    Repeats a block of 64 Ki values: drawing 46 MB of weights would cost more than timing.
    """
    global _block
    if _block is None:
        _block = np.random.RandomState(0).standard_normal(65536 + 1021).astype("float32")
    count = product(spec.shape)
    if "float" in spec.dtype:
        # An odd period, so that loop extents that are powers of two do not see the same values again.
        period = _block[seed * 131 % 1000 : seed * 131 % 1000 + 65521]
        return np.resize(period.astype(spec.dtype), count).reshape(spec.shape)
    return (np.arange(count) % 2).astype(spec.dtype).reshape(spec.shape)
