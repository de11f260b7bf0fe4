"""Kernels of quantized networks in TE: products of bytes with sums in int32, and their requantization.

Activations are uint8 or int8 with channels last, and weights int8. Dot-product instructions multiply
unsigned by signed bytes, four at a time for 16 outputs, so that int8 activations are read with 128
added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmtune import cpu_features
from tvmtune.passes import packed_products
from tvmtune.passes.packed_products import Storage, Window

QUAD = 4
"""Products that an instruction sums up for each output."""
OFFSET = 128
"""What int8 activations are read with."""
LARGEST_PRODUCT = 255 * 128


def has_instructions(target: dict[str, Any]) -> bool:
    """Whether a target has the instructions without which these kernels are slower than float ones."""
    return cpu_features.has(target, "avx512vnni")


@dataclass(frozen=True)
class Rounding:
    """From a sum to what is stored: ``clip(round(sum * factor) + zero, low, high)``, halves to even."""

    zero: int
    low: int
    high: int
    dtype: str

    def numbers(self) -> np.ndarray:
        """Zero point and bounds as an argument of the kernel, in float32: so kernels are the same for
        all layers of equal shapes, however they are calibrated."""
        return np.array([self.zero, self.low, self.high], "float32")


def convolution(x: Any, w: Any, window: Window, zero: Any, output: tuple[int, ...]) -> Any:
    """Sums in int32; ``zero`` is what stands for zero in ``x``, an int or an expression of int32. See
    :func:`packed_products.convolution`."""
    storage = _storage(x, zero)
    return packed_products.convolution(x, w, window, output, "int32", storage)


def depthwise(x: Any, w: Any, window: Window, zero: Any, output: tuple[int, ...]) -> Any:
    """Sums (N, H, W, C) in int32 of (N, H, W, C) activations and (KH, KW, C) weights."""
    from tvm import te

    rows, columns, channels = (int(n) for n in w.shape)
    batch, height, width, _ = (int(n) for n in x.shape)
    top, left, bottom, right = window.padding
    shape = (batch, top + height + bottom, left + width + right, channels)
    data = packed_products.padded(x, (0, top, left, 0), shape, _storage(x, zero))
    ky, kx = te.reduce_axis((0, rows), "ky"), te.reduce_axis((0, columns), "kx")
    (step_y, step_x), (far_y, far_x) = window.strides, window.dilation

    def element(n: Any, y: Any, z: Any, c: Any) -> Any:
        byte = data(n, y * step_y + ky * far_y, z * step_x + kx * far_x, c)
        return te.sum(byte.astype("int32") * w(ky, kx, c).astype("int32"), axis=[ky, kx])

    return te.compute(output, element, name="depthwise_conv2d_int8")


def product(x: Any, w: Any, output: tuple[int, ...]) -> Any:
    """Sums in int32; see :func:`packed_products.product`."""
    return packed_products.product(x, w, output, "int32", _storage(x, 0))


def requantize(
    sums: Any, bias: Any, factors: Any, numbers: Any, dtype: str, output: tuple[int, ...]
) -> Any:
    """What is stored of ``sums`` as ``dtype``, with an int32 bias, a float32 factor per channel and
    :meth:`Rounding.numbers`; the products of sums and factors in float32 without ``numbers``; the sums
    without ``factors``."""
    from tvm import te, tirx

    def element(*at: Any) -> Any:
        total = sums(*at) + bias(at[-1])
        if factors is None:
            return total
        value = total.astype("float32") * factors(at[-1])
        if numbers is None:
            return value
        zero, low, high = (numbers(place) for place in range(3))
        steps = tirx.nearbyint(value) + zero
        return tirx.min(tirx.max(steps, low), high).astype("int32").astype(dtype)

    return te.compute(output, element, name="requantize")


def _storage(x: Any, zero: Any) -> Storage:
    """As uint8."""
    from tvm import tirx

    zero = tirx.const(zero, "int32") if isinstance(zero, int) else zero
    if str(x.dtype) == "uint8":
        return Storage(zero.astype("uint8"))
    offset = tirx.const(OFFSET, "uint8")
    return Storage(
        (zero + OFFSET).astype("uint8"),
        convert=lambda value: value.astype("uint8") + offset,
        always=True,
    )
