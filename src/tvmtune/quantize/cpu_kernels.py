"""int8 kernels for CPUs in TE: convolutions, depthwise convolutions, sums and requantization.

Between layers a value q is stored as q + 128 in uint8, in blocks of 16 channels: dot-product
instructions (VNNI) multiply unsigned by signed numbers, four at a time for 16 outputs. The bias already
corrects for what the 128 adds to a sum, 128 times the sum of the weights; padding is 128, too.

The names of computations and kernels (``requantise``, ``pad``, ...) stay as they are, spelling
included: workload keys hash them, and existing logs and libraries hold these keys.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tvmtune.passes.constants import share
from tvmtune.quantize import quantize_dequantize
from tvmtune.quantize.float_fallback import before_transposition
from tvmtune.quantize.groups import Group
from tvmtune.quantize.integers import QuantizedConvolution, QuantizedLayer, QuantizedSum
from tvmtune.quantize.layers import ConvolutionLayer
from tvmtune.quantize.network import QuantizedNetwork
from tvmtune.quantize.quantize_dequantize import BlockedLayout

OFFSET = 128
LAYOUT = BlockedLayout(1, 16, OFFSET)
QUAD = 4
"""Products that one dot-product instruction sums up."""
_MAX_PRODUCTS = (2**31 - 1) // (255 * 127)
"""Number of products whose sum fits int32."""


def supports(layer: ConvolutionLayer) -> bool:
    """Whether there is a kernel for a convolution: dense or depthwise, not transposed, its sums within
    int32."""
    _, ins, kernel_h, kernel_w = layer.kernel
    products = -(-ins // LAYOUT.block) * LAYOUT.block * kernel_h * kernel_w
    return (
        (layer.groups == 1 or layer.is_depthwise)
        and layer.input_dilation == (1, 1)
        and products <= _MAX_PRODUCTS
    )


class GroupEmitter:
    """Emits the kernels of a group of layers."""

    def __init__(self, network: QuantizedNetwork) -> None:
        self._exponents = network.exponents
        self._quantized = {each.layer.output: each for each in network.quantized_layers}

    def emit(self, builder: Any, group: Group, inputs: dict[str, Any]) -> dict[str, Any]:
        """Emit a group of layers from float inputs to float outputs."""
        values = {name: self._pack(builder, name, value) for name, value in inputs.items()}
        for layer in group.layers:
            operands = [values[name] for name in layer.inputs]
            values[layer.output] = _emit_layer(builder, self._quantized[layer.output], operands)
        shapes = {layer.output: layer.out_shape for layer in group.layers}
        return {
            name: builder.emit(
                quantize_dequantize.unpack(
                    builder, values[name], self._exponents[name], shapes[name], LAYOUT
                )
            )
            for name in group.outputs
        }

    def _pack(self, builder: Any, name: str, value: Any) -> Any:
        """The quantized form of a tensor, read before it is transposed if it is."""
        base = before_transposition(builder, value)
        last = base is not None
        return builder.emit(
            quantize_dequantize.pack(
                builder,
                base if last else value,
                self._exponents[name],
                LAYOUT,
                channels_last=last,
            )
        )


def _emit_layer(builder: Any, quantized: QuantizedLayer, inputs: list[Any]) -> Any:
    if isinstance(quantized, QuantizedConvolution):
        return _emit_convolution(builder, quantized, inputs[0])
    assert isinstance(quantized, QuantizedSum)
    return _emit_sum(builder, quantized, inputs)


def _emit_convolution(builder: Any, quantized: QuantizedConvolution, x: Any) -> Any:
    """Padding, products and sums; then bias, shift and bounds. TVM fuses these kernels."""
    layer, weights = quantized.layer, quantized.weights
    bias = quantized.bias - OFFSET * weights.astype(np.int32).sum(axis=(1, 2, 3))
    if layer.is_depthwise:
        compute, blocked_weights = _depthwise, _depthwise_weights(weights)
    else:
        compute, blocked_weights = _dense, _dense_weights(weights)
    sums = builder.emit(
        builder.call_te(
            functools.partial(compute, layer=layer),
            x,
            share(blocked_weights),
            primfunc_name_hint="depthwise_conv2d_int8" if layer.groups > 1 else "conv2d_int8",
        )
    )
    biases, shifts = (
        share(_blocked(values.astype(np.int32)))
        for values in (bias, np.full(len(bias), quantized.shift))
    )
    return builder.emit(
        builder.call_te(
            functools.partial(_requantize, low=quantized.low, high=quantized.high),
            *(sums, biases, shifts),
            primfunc_name_hint="requantise",
        )
    )


def _dense(x: Any, w: Any, layer: ConvolutionLayer) -> Any:
    """``w``: (O/16, I/16, KH, KW, 4, 16, 4)."""
    from tvm import te

    padded = _pad(x, layer)
    (step_h, step_w), (dilation_h, dilation_w) = layer.strides, layer.dilation
    _, blocks, kernel_h, kernel_w, quads, _, _ = (int(d) for d in w.shape)
    axes = [
        te.reduce_axis((0, extent), name)
        for name, extent in (
            ("ky", kernel_h),
            ("kx", kernel_w),
            ("ci", blocks),
            ("f", quads),
            ("s", QUAD),
        )
    ]
    ky, kx, ci, f, s = axes

    def element(n: Any, co: Any, y: Any, z: Any, b: Any, o: Any) -> Any:
        at = (n, ci, y * step_h + ky * dilation_h, z * step_w + kx * dilation_w, b, f * QUAD + s)
        return te.sum(
            padded(*at).astype("int32") * w(co, ci, ky, kx, f, o, s).astype("int32"), axis=axes
        )

    return te.compute(LAYOUT.shape(layer.out_shape), element, name="conv2d_int8")


def _depthwise(x: Any, w: Any, layer: ConvolutionLayer) -> Any:
    """``w``: (C/16, KH, KW, 16)."""
    from tvm import te

    padded = _pad(x, layer)
    (step_h, step_w), (dilation_h, dilation_w) = layer.strides, layer.dilation
    _, kernel_h, kernel_w, _ = (int(d) for d in w.shape)
    ky, kx = te.reduce_axis((0, kernel_h), "ky"), te.reduce_axis((0, kernel_w), "kx")

    def element(n: Any, co: Any, y: Any, z: Any, b: Any, o: Any) -> Any:
        at = (n, co, y * step_h + ky * dilation_h, z * step_w + kx * dilation_w, b, o)
        product = padded(*at).astype("int32") * w(co, ky, kx, o).astype("int32")
        return te.sum(product, axis=[ky, kx])

    return te.compute(LAYOUT.shape(layer.out_shape), element, name="depthwise_conv2d_int8")


def _pad(x: Any, layer: ConvolutionLayer) -> Any:
    from tvm import te, tirx

    top, left, bottom, right = layer.padding
    if not any(layer.padding):
        return x
    batch, blocks, height, width, b, c = (int(d) for d in x.shape)
    shape = (batch, blocks, height + top + bottom, width + left + right, b, c)

    def element(n: Any, ci: Any, y: Any, z: Any, bi: Any, i: Any) -> Any:
        inside = tirx.all(y >= top, y < top + height, z >= left, z < left + width)
        value = x(n, ci, y - top, z - left, bi, i)
        return tirx.if_then_else(inside, value, tirx.const(OFFSET, LAYOUT.dtype))

    return te.compute(shape, element, name="pad")


def _requantize(sums: Any, bias: Any, shift: Any, low: int, high: int) -> Any:
    from tvm import te

    def element(*at: Any) -> Any:
        channel = at[1], at[5]
        return _clip((sums(*at) + bias(*channel)) >> shift(*channel), low, high)

    return te.compute(sums.shape, element, name="requantise")


def _emit_sum(builder: Any, quantized: QuantizedSum, inputs: list[Any]) -> Any:
    def compute(left: Any, right: Any) -> Any:
        from tvm import te, tirx

        def element(*at: Any) -> Any:
            total = tirx.const(quantized.rounding, "int32")
            for x, factor in zip((left, right), quantized.factors, strict=True):
                if factor is not None:
                    step = x(*at).astype("int32") - OFFSET
                    total = total + step * tirx.const(1 << factor, "int32")
            return _clip(total >> quantized.shift, quantized.low, quantized.high)

        return te.compute(left.shape, element, name="sum_int8")

    return builder.emit(builder.call_te(compute, *inputs, primfunc_name_hint="sum_int8"))


def _clip(value: Any, low: int, high: int) -> Any:
    """An int32 value within the bounds, as it is stored."""
    from tvm import tirx

    least, most = (tirx.const(bound, "int32") for bound in (low, high))
    return (tirx.min(tirx.max(value, least), most) + OFFSET).astype(LAYOUT.dtype)


def _dense_weights(weights: np.ndarray) -> np.ndarray:
    """Weights (O, I, KH, KW) as (O/16, I/16, KH, KW, 4, 16, 4)."""
    out, ins, kernel_h, kernel_w = weights.shape
    c = LAYOUT.block
    padding = [(0, -out % c), (0, -ins % c), (0, 0), (0, 0)]
    blocks = np.pad(weights, padding).reshape(
        -(-out // c), c, -(-ins // c), c // QUAD, QUAD, kernel_h, kernel_w
    )
    return np.ascontiguousarray(blocks.transpose(0, 2, 5, 6, 3, 1, 4))


def _depthwise_weights(weights: np.ndarray) -> np.ndarray:
    """Weights (C, 1, KH, KW) as (C/16, KH, KW, 16)."""
    out, _, kernel_h, kernel_w = weights.shape
    c = LAYOUT.block
    blocks = np.pad(weights, [(0, -out % c), (0, 0), (0, 0), (0, 0)])
    blocks = blocks.reshape(-(-out // c), c, kernel_h, kernel_w)
    return np.ascontiguousarray(blocks.transpose(0, 2, 3, 1))


def _blocked(values: np.ndarray) -> np.ndarray:
    """(O,) as (O/16, 16)."""
    return np.pad(values, (0, -len(values) % LAYOUT.block)).reshape(-1, LAYOUT.block)
