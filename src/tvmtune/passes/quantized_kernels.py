"""Kernels of quantized networks in TE: products of bytes with sums in int32, and their requantization.

Activations are uint8 or int8 with channels last, and weights int8. Dot-product instructions multiply
unsigned by signed bytes, four at a time for 16 outputs, so that int8 activations are read with 128
added, and weights are stored in blocks of 16 outputs and four inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

LANES = 16
"""Outputs of one dot-product instruction."""
QUAD = 4
"""Products that it sums up for each."""
OFFSET = 128
"""What int8 activations are read with."""
LARGEST_PRODUCT = 255 * 128
REQUANTIZE = "requantize"
"""Name of the computation behind the sums. That of ``--dtype int8`` is another: keys hash it."""


def has_instructions(target: dict[str, Any]) -> bool:
    """Whether a target has the instructions without which these kernels are slower than float ones."""
    import tvm
    from tvm.target.codegen import llvm_cpu_has_features

    # For other architectures LLVM does not know the name, and says no.
    known = tvm.target.Target(target)
    return target["kind"] == "llvm" and llvm_cpu_has_features("avx512vnni", known)


@dataclass(frozen=True)
class Window:
    """How a convolution moves over its input."""

    strides: tuple[int, ...]
    padding: tuple[int, ...]
    """Top, left, bottom, right."""
    dilation: tuple[int, ...]


@dataclass(frozen=True)
class Rounding:
    """From a sum to what is stored: ``clip(round(sum * factor) + zero, low, high)``, halves to even."""

    zero: int
    low: int
    high: int
    dtype: str


def blocked_weights(weights: np.ndarray) -> np.ndarray:
    """Weights (O, KH, KW, I) as (O/16, KH, KW, I/4, 16, 4), with zeros for what is missing."""
    outs, rows, columns, ins = weights.shape
    padded = np.pad(weights, [(0, -outs % LANES), (0, 0), (0, 0), (0, -ins % QUAD)])
    blocks = padded.reshape(-1, LANES, rows, columns, padded.shape[3] // QUAD, QUAD)
    return np.ascontiguousarray(blocks.transpose(0, 2, 3, 4, 1, 5))


def convolution(x: Any, w: Any, window: Window, zero: int, output: tuple[int, ...]) -> Any:
    """Sums (N, H, W, O/16, 16) in int32 of (N, H, W, C) activations and :func:`blocked_weights`.

    ``zero`` is what stands for zero in ``x``, ``output`` the shape (N, H, W, O).
    """
    from tvm import te

    blocks, rows, columns, quads, _, _ = (int(n) for n in w.shape)
    data = _bytes(x, window.padding, zero, quads * QUAD)
    ky, kx = te.reduce_axis((0, rows), "ky"), te.reduce_axis((0, columns), "kx")
    f, s = te.reduce_axis((0, quads), "f"), te.reduce_axis((0, QUAD), "s")
    (step_y, step_x), (far_y, far_x) = window.strides, window.dilation

    def element(n: Any, y: Any, z: Any, c: Any) -> Any:
        byte = data(n, y * step_y + ky * far_y, z * step_x + kx * far_x, f * QUAD + s)
        weight = w(c // LANES, ky, kx, f, c % LANES, s)
        return te.sum(byte.astype("int32") * weight.astype("int32"), axis=[ky, kx, f, s])

    return te.compute((*output[:3], blocks * LANES), element, name="conv2d_int8")


def depthwise(x: Any, w: Any, window: Window, zero: int, output: tuple[int, ...]) -> Any:
    """Sums (N, H, W, C) in int32 of (N, H, W, C) activations and (KH, KW, C) weights."""
    from tvm import te

    rows, columns, channels = (int(n) for n in w.shape)
    data = _bytes(x, window.padding, zero, channels)
    ky, kx = te.reduce_axis((0, rows), "ky"), te.reduce_axis((0, columns), "kx")
    (step_y, step_x), (far_y, far_x) = window.strides, window.dilation

    def element(n: Any, y: Any, z: Any, c: Any) -> Any:
        byte = data(n, y * step_y + ky * far_y, z * step_x + kx * far_x, c)
        return te.sum(byte.astype("int32") * w(ky, kx, c).astype("int32"), axis=[ky, kx])

    return te.compute(output, element, name="depthwise_conv2d_int8")


def product(x: Any, w: Any, zero: int, output: tuple[int, ...]) -> Any:
    """Sums (..., N/16, 16) in int32 of (..., K) activations and weights (N, 1, 1, K), which are
    :func:`blocked_weights`."""
    from tvm import te

    blocks, _, _, quads, _, _ = (int(n) for n in w.shape)
    data = _bytes(x, (0, 0, 0, 0), zero, quads * QUAD)
    f, s = te.reduce_axis((0, quads), "f"), te.reduce_axis((0, QUAD), "s")

    def element(*at: Any) -> Any:
        *rows, c = at
        byte = data(*rows, f * QUAD + s)
        weight = w(c // LANES, 0, 0, f, c % LANES, s)
        return te.sum(byte.astype("int32") * weight.astype("int32"), axis=[f, s])

    return te.compute((*output[:-1], blocks * LANES), element, name="matmul_int8")


def requantize(
    sums: Any, bias: Any, factors: Any, rounding: Rounding | None, output: tuple[int, ...]
) -> Any:
    """What is stored of ``sums``, with an int32 bias and a float32 factor per channel, in blocks if the
    sums are; the products of sums and factors in float32 without ``rounding``; the sums without
    ``factors``."""
    from tvm import te, tirx

    def element(*at: Any) -> Any:
        total = sums(*at) + bias(at[-1])
        if factors is None:
            return total
        value = total.astype("float32") * factors(at[-1])
        if rounding is None:
            return value
        zero = tirx.const(float(rounding.zero), "float32")
        low, high = (tirx.const(float(n), "float32") for n in (rounding.low, rounding.high))
        steps = tirx.nearbyint(value) + zero
        return tirx.min(tirx.max(steps, low), high).astype("int32").astype(rounding.dtype)

    return te.compute(output, element, name=REQUANTIZE)


def _bytes(x: Any, padding: tuple[int, ...], zero: int, channels: int) -> Any:
    """The activations as uint8 with the image padded, and with at least so many channels."""
    from tvm import te, tirx

    *outer, own = (int(n) for n in x.shape)
    top, left, bottom, right = padding
    signed = str(x.dtype) == "int8"
    if not signed and channels == own and not any(padding):
        return x
    shape = [*outer, channels]
    if any(padding):
        shape[1] += top + bottom
        shape[2] += left + right

    def element(*at: Any) -> Any:
        inside = [at[-1] < own] if channels > own else []
        place = list(at)
        for axis, before in ((1, top), (2, left)):
            if any(padding):
                place[axis] = at[axis] - before
                inside += [place[axis] >= 0, place[axis] < outer[axis]]
        value = x(*place)
        if signed:
            value = value.astype("uint8") + tirx.const(OFFSET, "uint8")
        if not inside:
            return value
        nothing = tirx.const(zero + OFFSET * signed, "uint8")
        return tirx.if_then_else(tirx.all(*inside), value, nothing)

    return te.compute(shape, element, name="pad")
