"""The integer arithmetic of quantized layers: the reference for every backend that computes them.

A tensor holds int8 values q that stand for ``q * 2^exponent``; sums are int32. A convolution adds its
bias, whose exponent is the sum of those of input and weights and which includes half a step of the
output for rounding, shifts right, and clips. A sum first multiplies its operands by powers of two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tvmtune.quantize.layers import ConvolutionLayer, FloatArray, Layer, SumLayer

Int8Array = npt.NDArray[np.int8]
LOWEST, HIGHEST = -127, 127
"""Range of quantized values; -128 is left out so that negation is exact."""


@dataclass(frozen=True, eq=False)
class QuantizedLayer:
    """A layer with the scales and bounds of its integer arithmetic."""

    layer: Layer
    exponents: tuple[int, ...]
    """Of the inputs."""
    exponent: int
    """Of the output."""
    shift: int
    """To the right, at least 0."""
    low: int
    high: int

    def accumulate(self, inputs: Sequence[Int8Array]) -> npt.NDArray[np.int64]:
        """The sums before the shift, rounding included."""
        raise NotImplementedError

    def run(self, inputs: Sequence[Int8Array]) -> Int8Array:
        """The output (N, C, H, W) for inputs of the same layout."""
        return np.clip(self.accumulate(inputs) >> self.shift, self.low, self.high).astype(np.int8)


@dataclass(frozen=True, eq=False)
class QuantizedConvolution(QuantizedLayer):
    """A convolution with int8 weights and an int32 bias."""

    layer: ConvolutionLayer
    weights: Int8Array
    """(O, I / groups, KH, KW)."""
    weight_exponent: int
    bias: npt.NDArray[np.int32]
    """(O,), half a step of the output included."""

    def accumulate(self, inputs: Sequence[Int8Array]) -> npt.NDArray[np.int64]:
        sums = _convolve(self.layer, inputs[0], self.weights)
        return sums + self.bias.astype(np.int64)[:, None, None]


@dataclass(frozen=True, eq=False)
class QuantizedSum(QuantizedLayer):
    """A sum of two int8 tensors, each multiplied by a power of two."""

    layer: SumLayer
    factors: tuple[int | None, int | None]
    """log2 of what each operand is multiplied by; None for an operand that is dropped."""

    @property
    def rounding(self) -> int:
        """Half a step of the output, in steps of the sum."""
        return 1 << self.shift - 1 if self.shift else 0

    def accumulate(self, inputs: Sequence[Int8Array]) -> npt.NDArray[np.int64]:
        left, right = (
            x.astype(np.int64) << factor if factor is not None else np.zeros(x.shape, np.int64)
            for x, factor in zip(inputs, self.factors, strict=True)
        )
        return left + right + self.rounding


def run_all(
    quantized_layers: Sequence[QuantizedLayer], tensors: Mapping[str, Int8Array]
) -> dict[str, Int8Array]:
    """The outputs of layers in program order, by name; ``tensors`` holds their external inputs.

    The result includes ``tensors``.
    """
    values = dict(tensors)
    for each in quantized_layers:
        values[each.layer.output] = each.run([values[name] for name in each.layer.inputs])
    return values


def quantize(values: FloatArray, exponent: int) -> Int8Array:
    """The nearest steps of ``2^exponent``, halves to even, clipped to int8."""
    steps = np.rint(np.ldexp(values.astype(np.float64), -exponent))
    return np.clip(steps, LOWEST, HIGHEST).astype(np.int8)


def dequantize(values: Int8Array, exponent: int) -> FloatArray:
    """The float32 values that steps of ``2^exponent`` stand for."""
    return np.ldexp(values.astype(np.float32), exponent)


def _convolve(layer: ConvolutionLayer, x: Int8Array, weights: Int8Array) -> npt.NDArray[np.int64]:
    """A convolution as one matrix product for each position of the kernel.

    It is exact in float64, whose 53 bits are more than any sum here needs.
    """
    top, left, bottom, right = layer.padding
    values = x.astype(np.float64)
    if layer.input_dilation != (1, 1):
        (up_h, up_w), (height, width) = layer.input_dilation, x.shape[2:]
        values = np.zeros((*x.shape[:2], (height - 1) * up_h + 1, (width - 1) * up_w + 1))
        values[:, :, ::up_h, ::up_w] = x
    padded = np.pad(values, [(0, 0), (0, 0), (top, bottom), (left, right)])
    batch, (_, _, out_h, out_w) = len(x), layer.out_shape
    out, ins, kernel_h, kernel_w = weights.shape
    (step_h, step_w), (dilation_h, dilation_w) = layer.strides, layer.dilation
    groups = layer.groups
    sums = np.zeros((batch, groups, out // groups, out_h * out_w))
    tiles = weights.astype(np.float64).reshape(groups, out // groups, ins, kernel_h, kernel_w)
    for ky in range(kernel_h):
        for kx in range(kernel_w):
            rows = slice(ky * dilation_h, ky * dilation_h + step_h * (out_h - 1) + 1, step_h)
            columns = slice(kx * dilation_w, kx * dilation_w + step_w * (out_w - 1) + 1, step_w)
            window = padded[:, :, rows, columns].reshape(batch, groups, ins, out_h * out_w)
            sums += tiles[None, :, :, :, ky, kx] @ window
    return sums.reshape(batch, *layer.out_shape[1:]).astype(np.int64)
