"""Kernels of quantized networks in TE: products of bytes with sums in int32, and their requantization.

Activations are uint8 or int8 with channels last, and weights int8, or int16 of depthwise convolutions.
The target's dot-product instruction says in which type it reads both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmtune.dot_instructions import DotInstruction
from tvmtune.passes import packed_products
from tvmtune.passes.packed_products import Storage, Window

BOUNDS = {"uint8": (0, 255), "int8": (-128, 127)}
"""The least and the largest value of each type of bytes."""
LARGEST_PRODUCT = 255 * 128
OFFSET = 128
"""From a signed byte to the unsigned one in its place."""


def offset(dtype: str, instruction: DotInstruction) -> int:
    """What is added to activations of this type when they are read, because the instruction multiplies
    those of the other signedness."""
    return {("int8", "uint8"): OFFSET, ("uint8", "int8"): -OFFSET}.get((dtype, instruction.data), 0)


@dataclass(frozen=True)
class Rounding:
    """From a sum to what is stored: ``clip(round(sum * factor) + zero, low, high)``, halves to even;
    with a ``scale``, the value of these steps: ``scale * (steps - zero)`` in float32."""

    zero: int
    low: int
    high: int
    dtype: str
    scale: np.float32 | None = None

    def numbers(self) -> np.ndarray:
        """Zero point and bounds as an argument of the kernel, in float32; with a scale, that and the
        bounds without the zero point. So kernels are the same for all layers of equal shapes, however
        they are calibrated."""
        if self.scale is not None:
            return np.array([self.scale, self.low - self.zero, self.high - self.zero], "float32")
        return np.array([self.zero, self.low, self.high], "float32")


def convolution(
    x: Any,
    w: Any,
    window: Window,
    zero: Any,
    output: tuple[int, ...],
    instruction: DotInstruction,
    groups: int = 1,
) -> Any:
    """Sums in int32; ``zero`` is what stands for zero in ``x``, an int or an expression of int32. See
    :func:`packed_products.convolution`."""
    storage = _storage(x, zero, instruction)
    return packed_products.convolution(x, w, window, output, "int32", storage, groups)


def depthwise(
    x: Any,
    w: Any,
    window: Window,
    zero: Any,
    output: tuple[int, ...],
    instruction: DotInstruction,
) -> Any:
    """Sums (N, H, W, C) in int32 of (N, H, W, C) activations and (KH, KW, C) weights."""
    from tvm import te

    rows, columns, channels = (int(n) for n in w.shape)
    batch, height, width, _ = (int(n) for n in x.shape)
    top, left, bottom, right = window.padding
    shape = (batch, top + height + bottom, left + width + right, channels)
    data = packed_products.padded(x, (0, top, left, 0), shape, _storage(x, zero, instruction))
    ky, kx = te.reduce_axis((0, rows), "ky"), te.reduce_axis((0, columns), "kx")
    (step_y, step_x), (far_y, far_x) = window.strides, window.dilation

    def element(n: Any, y: Any, z: Any, c: Any) -> Any:
        byte = data(n, y * step_y + ky * far_y, z * step_x + kx * far_x, c)
        return te.sum(byte.astype("int32") * w(ky, kx, c).astype("int32"), axis=[ky, kx])

    return te.compute(output, element, name="depthwise_conv2d_int8")


def product(x: Any, w: Any, output: tuple[int, ...], instruction: DotInstruction) -> Any:
    """Sums in int32; see :func:`packed_products.product`."""
    return packed_products.product(x, w, output, "int32", _storage(x, 0, instruction))


def narrowed(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int16 weights (O, ...) of which each output's are within 256 steps, as int8, and what was
    subtracted from each output's, int32: ``sum(x w) = sum(x narrow) + shift sum(x)``."""
    flat = weights.reshape(len(weights), -1).astype(np.int32)
    shifts = np.maximum(flat.max(axis=1) - 127, 0) + np.minimum(flat.min(axis=1) + 128, 0)
    each = shifts.reshape(-1, *[1] * (weights.ndim - 1))
    return (weights - each).astype(np.int8), shifts.astype(np.int32)


def requantize(
    sums: Any,
    bias: Any,
    factors: Any,
    numbers: Any,
    dtype: str,
    output: tuple[int, ...],
    shifted: tuple[Any, Any] | None = None,
) -> Any:
    """What is stored of ``sums`` as ``dtype``, with an int32 bias, a float32 factor per channel and
    :meth:`Rounding.numbers`; if that is float32, the values of the steps. The products of sums and
    factors in float32 without ``numbers``; the sums without ``factors``. ``shifted``: the shifts of
    :func:`narrowed`, and the sums of the data (..., 1)."""
    from tvm import te, tirx

    def element(*at: Any) -> Any:
        total = sums(*at) + bias(at[-1])
        if shifted is not None:
            shifts, read = shifted
            total += shifts(at[-1]) * read(*at[:-1], 0)
        if factors is None:
            return total
        value = total.astype("float32") * factors(at[-1])
        if numbers is None:
            return value
        first, low, high = (numbers(place) for place in range(3))
        if dtype == "float32":
            return tirx.min(tirx.max(tirx.nearbyint(value), low), high) * first
        steps = tirx.nearbyint(value) + first
        return tirx.min(tirx.max(steps, low), high).astype("int32").astype(dtype)

    return te.compute(output, element, name="requantize")


def _storage(x: Any, zero: Any, instruction: DotInstruction) -> Storage:
    """As the instruction reads data."""
    from tvm import tirx

    zero = tirx.const(zero, "int32") if isinstance(zero, int) else zero
    dtype, stored = str(x.dtype), instruction.data
    if dtype == stored:
        return Storage(zero.astype(stored))
    added = offset(dtype, instruction)

    def convert(value: Any) -> Any:
        if added:  # OFFSET, or -OFFSET, which has the same bits; as uint8, whose sums may wrap
            value = value.astype("uint8") + tirx.const(OFFSET, "uint8")
        return value.astype(stored)

    return Storage((zero + added).astype(stored), convert=convert, always=True)
