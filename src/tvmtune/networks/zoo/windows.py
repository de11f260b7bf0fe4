"""Sliding windows of convolutions and poolings: ONNX attributes and output extents."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

Extent = int | tuple[int, ...]
"""One number per axis, or one for all axes."""


@dataclass(frozen=True)
class Window:
    """A window with the same padding at both ends of an axis; one number per axis."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    ceil: bool = False
    """Whether the last window may extend beyond the end."""

    @staticmethod
    def of(rank: int, kernel: Extent, stride: Extent, pad: Extent, *, ceil: bool = False) -> Window:
        """The window over ``rank`` axes."""
        return Window(each(kernel, rank), each(stride, rank), each(pad, rank), ceil)

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of ONNX's Conv, MaxPool and AveragePool."""
        attributes: dict[str, Any] = {
            "kernel_shape": list(self.kernel),
            "strides": list(self.stride),
            "pads": list(self.pad) * 2,
        }
        if self.ceil:
            attributes["ceil_mode"] = 1
        return attributes

    def slide(self, extents: Sequence[int], layer: str) -> tuple[int, ...]:
        """Positions along each of ``extents``; :class:`UsageError` if the window is larger."""
        axes = list(zip(extents, self.kernel, self.stride, self.pad, strict=True))
        if any(extent + 2 * pad < kernel for extent, kernel, _, pad in axes):
            size = "x".join(map(str, extents))
            raise UsageError(
                f"the input is too small: only {size} is left of it at layer '{layer}'"
            )
        return tuple(
            (extent + 2 * pad - kernel + (stride - 1) * self.ceil) // stride + 1
            for extent, kernel, stride, pad in axes
        )

    def coverage(self, extents: Sequence[int]) -> np.ndarray:
        """The share of the window that lies within ``extents``, at each position."""
        parts = []
        for axis, positions in enumerate(self.slide(extents, "")):
            start = np.arange(positions) * self.stride[axis] - self.pad[axis]
            end = np.minimum(start + self.kernel[axis], extents[axis])
            parts.append((end - np.maximum(start, 0)) / self.kernel[axis])
        return reduce(np.multiply.outer, parts)


def each(extent: Extent, rank: int) -> tuple[int, ...]:
    """One number for each of ``rank`` axes."""
    return (extent,) * rank if isinstance(extent, int) else tuple(extent)
