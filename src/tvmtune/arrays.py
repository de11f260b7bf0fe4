"""NumPy arrays for TVM: dtypes by name, aligned buffers."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

ALIGNMENT = 64
"""Alignment in bytes that TVM's kernels expect of their buffers."""
_TRANSPOSE_BLOCK = 64


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy type called ``name``; bfloat16 and the float8 types come from ml_dtypes."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


def nbytes(tensor: Any) -> int:
    """Bytes of the values of anything with a shape and a dtype's name, such as a TensorSpec or a tensor
    of TVM."""
    return math.prod(tensor.shape) * numpy_dtype(str(tensor.dtype)).itemsize


def to_text(array: np.ndarray) -> str:
    """The values as base64 of their bytes in C order, little-endian, for JSON."""
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return base64.b64encode(little.tobytes()).decode()


def from_text(text: str, dtype: np.dtype) -> np.ndarray:
    """The values of :func:`to_text` as a vector."""
    return np.frombuffer(base64.b64decode(text), dtype.newbyteorder("<"))


def narrowed(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The array in a smaller floating-point type whose largest values stand for larger finite ones.

    Masks write the lowest float32 for minus infinity. As an infinity it would become NaN where a mask
    multiplies it by 0.
    """
    import ml_dtypes

    largest = float(ml_dtypes.finfo(dtype).max)
    finite = np.isfinite(array)
    return np.where(finite, np.clip(array, -largest, largest), array).astype(dtype)


def aligned(array: np.ndarray) -> np.ndarray:
    """A contiguous copy at an address that is a multiple of :data:`ALIGNMENT`."""
    copy = empty(array.shape, array.dtype)
    if array.ndim == 2 and array.flags.f_contiguous:
        for start in range(0, array.shape[1], _TRANSPOSE_BLOCK):  # transpose within the caches
            columns = slice(start, start + _TRANSPOSE_BLOCK)
            copy[:, columns] = array[:, columns]
    else:
        copy[...] = array
    return copy


def empty(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """An uninitialized contiguous array at such an address."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    buffer = np.empty(size + ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % ALIGNMENT
    return buffer[start : start + size].view(dtype).reshape(shape)
