"""Chooses power-of-two scales for tensors and weights from calibrated values."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tvmtune.errors import TvmtuneError
from tvmtune.quantize import integers
from tvmtune.quantize.integers import (
    HIGHEST,
    LOWEST,
    QuantizedConvolution,
    QuantizedLayer,
    QuantizedSum,
)
from tvmtune.quantize.layers import ConvolutionLayer, FloatArray, Layer, SumLayer

FINER_EXPONENTS = 2
"""How many exponents below the one that clips nothing are tried: they clip a few large values and give
all others finer steps."""
ZERO_TENSOR_EXPONENT = -7
"""The exponent of a tensor that was all zeros in calibration: its values reach 1."""
_MAX_FACTOR = 6
"""log2 of the largest factor that fits an int8 weight."""
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class LayerScales:
    """The scales and the error of one layer: a row of the table."""

    name: str
    kind: str
    exponents: tuple[int, ...]
    weight_exponent: int | None
    exponent: int
    shift: int
    cut: float
    """The share of the output's values that int8 clips."""
    sqnr: float | None
    """Signal-to-quantization-noise ratio at the layer's output in dB, with all layers before it
    quantized as far as no float operator lies in between; None without noise or without signal."""


def exponent_for(values: FloatArray) -> int:
    """The exponent with the least squared error, among those that clip nothing or little."""
    largest = float(np.max(np.abs(values), initial=0.0))
    if not math.isfinite(largest):
        raise TvmtuneError(
            "calibration gave values that are not finite: check the data of --calibration"
        )
    if largest == 0:
        return ZERO_TENSOR_EXPONENT
    coarsest = math.ceil(math.log2(largest / HIGHEST))
    errors = {}
    for exponent in range(coarsest, coarsest - FINER_EXPONENTS - 1, -1):
        kept = integers.dequantize(integers.quantize(values, exponent), exponent)
        errors[exponent] = float(np.sum((kept - values).astype(np.float64) ** 2))
    return min(errors, key=lambda each: errors[each])


def quantize_layers(
    layers: Sequence[Layer], tensors: Mapping[str, FloatArray]
) -> tuple[list[QuantizedLayer], dict[str, int]]:
    """The quantized layers, and the exponent of each tensor that they read or write.

    ``tensors`` holds the float values (N, C, H, W) of all of these, for all calibration inputs. Raises
    :class:`TvmtuneError` for values from which no scale follows.
    """
    exponents: dict[str, int] = {}
    quantized_layers: list[QuantizedLayer] = []
    for layer in layers:
        for name in layer.inputs:
            if name not in exponents:
                exponents[name] = exponent_for(tensors[name])
        quantized: QuantizedLayer
        if isinstance(layer, ConvolutionLayer):
            quantized = _quantize_convolution(layer, exponents, tensors)
        else:
            assert isinstance(layer, SumLayer)
            quantized = _quantize_sum(layer, exponents, tensors)
        exponents[layer.output] = quantized.exponent
        quantized_layers.append(quantized)
    return quantized_layers, exponents


def table(
    quantized_layers: Sequence[QuantizedLayer],
    exponents: Mapping[str, int],
    tensors: Mapping[str, FloatArray],
) -> list[LayerScales]:
    """A row for each layer; ``tensors`` are the float values that scales were chosen from."""
    computed = {each.layer.output for each in quantized_layers}
    external = {n for each in quantized_layers for n in each.layer.inputs} - computed
    results = integers.run_all(
        quantized_layers, {n: integers.quantize(tensors[n], exponents[n]) for n in external}
    )
    rows = []
    for each in quantized_layers:
        name = each.layer.output
        wanted, got = tensors[name], results[name]
        noise = integers.dequantize(got, each.exponent).astype(np.float64) - wanted
        signal = float(np.sum(wanted.astype(np.float64) ** 2))
        error = float(np.sum(noise**2))
        sqnr = 10 * math.log10(signal / error) if error and signal else None
        steps = np.ldexp(wanted.astype(np.float64), -each.exponent)
        rows.append(
            LayerScales(
                name,
                each.layer.kind,
                each.exponents,
                each.weight_exponent if isinstance(each, QuantizedConvolution) else None,
                each.exponent,
                each.shift,
                float(np.mean(np.abs(steps) > HIGHEST + 0.5)),
                sqnr,
            )
        )
    return rows


def _quantize_convolution(
    layer: ConvolutionLayer, exponents: Mapping[str, int], tensors: Mapping[str, FloatArray]
) -> QuantizedConvolution:
    weights, bias = layer.parameters()
    input_exponent, weight_exponent = exponents[layer.inputs[0]], exponent_for(weights)
    sum_exponent = input_exponent + weight_exponent
    exponent = max(exponent_for(tensors[layer.output]), sum_exponent)
    shift = exponent - sum_exponent
    rounding = 1 << shift - 1 if shift else 0
    bias_steps = np.rint(np.ldexp(bias.astype(np.float64), -sum_exponent)) + rounding
    int8_weights = integers.quantize(weights, weight_exponent)
    # The largest sum that int8 inputs can produce.
    reach = np.abs(int8_weights.astype(np.int64)).sum(axis=(1, 2, 3)) * 128 + np.abs(bias_steps)
    if shift > 30 or float(reach.max()) > _INT32_MAX:
        raise TvmtuneError(
            f"layer {layer.output} cannot be computed in 32 bits: its sums reach "
            f"{float(reach.max()):.3g}, shifted by {shift}. Its bias is too large for its weights; "
            "leave it out with start-op= or stop-op= where the target has these, or stay in float."
        )
    low, high = _integer_bounds(layer, exponent)
    return QuantizedConvolution(
        *(layer, (input_exponent,), exponent, shift, low, high),
        weights=int8_weights,
        weight_exponent=weight_exponent,
        bias=bias_steps.astype(np.int32),
    )


def _quantize_sum(
    layer: SumLayer, exponents: Mapping[str, int], tensors: Mapping[str, FloatArray]
) -> QuantizedSum:
    """If the operands' scales differ by more than a factor can express, the smaller one is dropped: it
    is less than a step of the other, or was all zeros."""
    left, right = (exponents[name] for name in layer.inputs)
    finer = min(left, right)
    factors: tuple[int | None, int | None] = (left - finer, right - finer)
    if abs(left - right) > _MAX_FACTOR:
        reach = [float(np.max(np.abs(tensors[name]), initial=0.0)) for name in layer.inputs]
        smaller = reach.index(min(reach))
        factors = (None, 0) if smaller == 0 else (0, None)
        finer = right if smaller == 0 else left
        warnings.warn(
            f"layer {layer.output}: what {layer.inputs[smaller]} adds (at most {reach[smaller]:.2g} to "
            f"at most {max(reach):.2g}) is less than one int8 step, and is dropped",
            stacklevel=2,
        )
    exponent = max(exponent_for(tensors[layer.output]), finer)
    low, high = _integer_bounds(layer, exponent)
    return QuantizedSum(
        layer, (left, right), exponent, exponent - finer, low, high, factors=factors
    )


def _integer_bounds(layer: Layer, exponent: int) -> tuple[int, int]:
    """The activation's bounds in steps of the output."""

    def steps(bound: float | None, default: int) -> int:
        if bound is None:
            return default
        return round(min(HIGHEST, max(LOWEST, math.ldexp(bound, -exponent))))

    return steps(layer.low, LOWEST), steps(layer.high, HIGHEST)
