"""Layers in whole numbers, and what they compute: the reference of every backend that runs them.

A tensor holds int8 values that stand for ``q * 2^exponent``; sums are int32. A convolution adds its
bias, which has the exponents' sum for its own and half a step of the output for rounding in it, shifts
to the right, and cuts. A sum multiplies its operands by powers of two first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tvmtune.quantise.region import Floats, Layer

Bytes = npt.NDArray[np.int8]
LOWEST, HIGHEST = -127, 127
"""Of values; -128 is left out, so that negation is exact."""


@dataclass(frozen=True, eq=False)
class Whole:
    """A layer with everything that its arithmetic needs."""

    layer: Layer
    exponents: tuple[int, ...]
    """Of the inputs."""
    exponent: int
    """Of the output."""
    shift: int
    """To the right, at least 0."""
    low: int
    high: int
    weights: Bytes | None = None
    """(O, I / groups, KH, KW)."""
    weight_exponent: int = 0
    bias: npt.NDArray[np.int32] | None = None
    """(O,), half a step of the output included."""
    factors: tuple[int | None, int | None] = (0, 0)
    """log2 of what the operands of a sum are multiplied by; None for one that is left out."""


def run(whole: Whole, inputs: Sequence[Bytes]) -> Bytes:
    """The output (N, C, H, W) of inputs of that form."""
    if whole.layer.kind == "sum":
        left, right = (
            x.astype(np.int64) << factor if factor is not None else np.zeros(x.shape, np.int64)
            for x, factor in zip(inputs, whole.factors, strict=True)
        )
        sums = left + right
        if whole.shift:
            sums += 1 << whole.shift - 1
    else:
        assert whole.weights is not None and whole.bias is not None
        sums = _products(whole.layer, inputs[0], whole.weights)
        sums += whole.bias.astype(np.int64)[:, None, None]
    return np.clip(sums >> whole.shift, whole.low, whole.high).astype(np.int8)


def run_all(wholes: Sequence[Whole], tensors: Mapping[str, Bytes]) -> dict[str, Bytes]:
    """The outputs of layers in order, by their names; ``tensors`` holds what comes from elsewhere."""
    known = dict(tensors)
    for whole in wholes:
        inputs = [known[name] for name in whole.layer.inputs]
        known[whole.layer.output] = run(whole, inputs)
    return known


def quantise(values: Floats, exponent: int) -> Bytes:
    """The nearest whole steps, cut to int8."""
    steps = np.rint(np.ldexp(values.astype(np.float64), -exponent))
    return np.clip(steps, LOWEST, HIGHEST).astype(np.int8)


def restore(values: Bytes, exponent: int) -> Floats:
    """What they stand for."""
    return np.ldexp(values.astype(np.float32), exponent)


def _products(layer: Layer, x: Bytes, weights: Bytes) -> npt.NDArray[np.int64]:
    """A convolution as products of matrices, position by position of the kernel: exact in float64, of
    which 53 bits are more than any sum here needs."""
    top, left, bottom, right = layer.padding
    values = x.astype(np.float64)
    if layer.up != (1, 1):
        (up_h, up_w), (height, width) = layer.up, x.shape[2:]
        values = np.zeros((*x.shape[:2], (height - 1) * up_h + 1, (width - 1) * up_w + 1))
        values[:, :, ::up_h, ::up_w] = x
    padded = np.pad(values, [(0, 0), (0, 0), (top, bottom), (left, right)])
    batch, (_, _, out_h, out_w) = len(x), layer.out_shape
    out, ins, kernel_h, kernel_w = weights.shape
    (step_h, step_w), (wide_h, wide_w) = layer.strides, layer.dilation
    groups = layer.groups
    sums = np.zeros((batch, groups, out // groups, out_h * out_w))
    tiles = weights.astype(np.float64).reshape(groups, out // groups, ins, kernel_h, kernel_w)
    for ky in range(kernel_h):
        for kx in range(kernel_w):
            rows = slice(ky * wide_h, ky * wide_h + step_h * (out_h - 1) + 1, step_h)
            columns = slice(kx * wide_w, kx * wide_w + step_w * (out_w - 1) + 1, step_w)
            seen = padded[:, :, rows, columns].reshape(batch, groups, ins, out_h * out_w)
            sums += tiles[None, :, :, :, ky, kx] @ seen
    return sums.reshape(batch, *layer.out_shape[1:]).astype(np.int64)
