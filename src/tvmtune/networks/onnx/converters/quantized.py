"""Quantized operators, as ONNX Runtime's tools write them: integers in, integers out.

Each becomes the float operator between dequantize and quantize, which is how the standard defines it.
Backends compute these in integers again where they can.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from tvmtune.networks.onnx.converters.request import (
    Converter,
    Node,
    constant,
    required,
)
from tvmtune.networks.relax_operators import dtype, shape


def qlinear_conv(node: Node) -> Any:
    """Inputs: data, weights, output, each with scale and zero point (the output only these); bias."""
    x, weights = _dequantized(node, 0), _dequantized(node, 3, axis=0)
    bias = _bias(node, node.input(8))
    return _quantized(node, node.standard(x, weights, bias, operator="Conv"), 6)


def qlinear_matmul(node: Node) -> Any:
    right = node.inputs[3]
    return _quantized(
        node,
        node.op.matmul(_dequantized(node, 0), _dequantized(node, 3, axis=len(shape(right)) - 1)),
        6,
    )


def qgemm(node: Node) -> Any:
    """With float output if its scale is left out."""
    is_transposed = bool(node.attrs.get("transB", 0))
    left, right = _dequantized(node, 0), _dequantized(node, 3, axis=0 if is_transposed else 1)
    if node.attrs.get("transA", 0):
        left = node.op.permute_dims(left)
    if is_transposed:
        right = node.op.permute_dims(right)
    product = node.op.matmul(left, right)
    alpha = node.attrs.get("alpha", 1.0)
    if alpha != 1.0:
        product = node.op.multiply(product, alpha)
    bias = _bias(node, node.input(6), alpha)
    if bias is not None:
        product = node.op.add(product, bias)
    return product if node.input(7) is None else _quantized(node, product, 7)


def elementwise(operator: str) -> Converter:
    """Of two tensors."""

    def convert(node: Node) -> Any:
        result = getattr(node.op, operator)(_dequantized(node, 0), _dequantized(node, 3))
        return _quantized(node, result, 6)

    return convert


def activation(compute: Callable[[Node, Any], Any]) -> Converter:
    """Of one tensor."""

    def convert(node: Node) -> Any:
        return _quantized(node, compute(node, _dequantized(node, 0)), 3)

    return convert


def pooling(operator: str) -> Converter:
    def convert(node: Node) -> Any:
        node.refuse({"channels_last": 0})
        node.attrs.pop("channels_last", None)
        result = node.standard(_dequantized(node, 0), operator=operator)
        return _quantized(node, result, 3)

    return convert


def concatenation(node: Node) -> Any:
    """Inputs: scale and zero point of the output, then each tensor with its own."""
    parts = [_dequantized(node, place) for place in range(2, len(node.inputs), 3)]
    return _quantized(node, node.op.concat(parts, axis=node.attrs["axis"]), 0)


def matmul_integer(node: Node) -> Any:
    """Sums in int32, without the products of the zero points: the importer subtracts these from the
    operands, which are then no bytes any more."""
    left, right = node.inputs[:2]
    weights, zeros = constant(right), constant(node.input(3)) if node.input(3) is not None else None
    if weights is None or weights.ndim != 2 or (node.input(3) is not None and zeros is None):
        return node.standard(*node.inputs)
    if weights.dtype == np.uint8 or (zeros is not None and zeros.any()):
        whole = weights.astype(np.int32) - (0 if zeros is None else zeros.astype(np.int32))
        if whole.min() < -128 or whole.max() > 127:
            return node.standard(*node.inputs)
        weights = whole.astype(np.int8)
    sums = node.op.matmul(left, relax.const(weights), out_dtype="int32")
    zero = node.input(2)
    if zero is None:
        return sums
    if int(np.prod(shape(zero))) != 1:
        return node.standard(*node.inputs)
    columns = relax.const(weights.astype(np.int32).sum(axis=0))
    wide = node.op.astype(node.op.reshape(zero, []), "int32")
    return node.op.subtract(sums, node.op.multiply(columns, wide))


def conv_integer(node: Node) -> Any:
    """The importer lacks it. Inputs: data, weights, and their zero points; sums are int32."""
    x, weights = (_without_zero_point(node, place) for place in range(2))
    return node.standard(x, weights, operator="Conv")


def _without_zero_point(node: Node, place: int) -> Any:
    """The integers at input ``place`` less their zero point, as int32. One of weights may be a vector,
    with a value per output channel."""
    wide = node.op.astype(node.inputs[place], "int32")
    zero = node.input(place + 2)
    if zero is None:
        return wide
    extents = [-1, *[1] * (len(shape(wide)) - 1)] if len(shape(zero)) == 1 else []
    return node.op.subtract(wide, node.op.reshape(node.op.astype(zero, "int32"), extents))


def _dequantized(node: Node, first: int, axis: int = 1) -> Any:
    """The value of the tensor at input ``first``, whose scale and zero point follow."""
    x, scale, zero = (node.input(first + step) for step in range(3))
    rank = len(shape(x))
    if zero is None:
        zero = relax.const(0, dtype(x))
    if int(np.prod(shape(scale))) == 1:
        axis = 0
        scale, zero = (_scalar(node, each) for each in (scale, zero))
    return node.emit(
        relax.op.dequantize(x, scale, zero, axis=axis % max(rank, 1), out_dtype="float32")
    )


def _quantized(node: Node, value: Any, first: int) -> Any:
    """``value`` as integers with the scale and zero point at input ``first`` and after it."""
    scale, zero = node.input(first), node.input(first + 1)
    kind = "uint8" if zero is None else dtype(zero)
    if zero is None:
        zero = relax.const(0, kind)
    scale, zero = (_scalar(node, each) for each in (scale, zero))
    return relax.op.quantize(node.emit(value), scale, zero, axis=0, out_dtype=kind)


def _scalar(node: Node, tensor: Any) -> Any:
    value = constant(tensor)
    if value is not None:
        return relax.const(value.reshape(()))
    return node.op.reshape(tensor, [])


def _bias(node: Node, bias: Any, factor: float = 1.0) -> Any | None:
    """An int32 bias in steps of the products' scales."""
    if bias is None:
        return None
    steps = required(node.input(1), "scale") * required(node.input(4), "scale of the weights")
    values = required(bias, "bias").astype(np.float64) * steps.astype(np.float64) * factor
    return relax.const(values.astype(np.float32))


def _leaky_relu(node: Node, x: Any) -> Any:
    return node.op.nn.leakyrelu(x, alpha=node.attrs.get("alpha", 0.01))


def _sigmoid(node: Node, x: Any) -> Any:
    return node.op.sigmoid(x)


def _softmax(node: Node, x: Any) -> Any:
    if node.attrs.get("opset", 13) < 13:
        raise ValueError("its attribute opset must be at least 13")
    return node.op.nn.softmax(x, axis=node.attrs.get("axis", -1))


CONVERTERS: dict[str, Converter] = {
    "ConvInteger": conv_integer,
    "MatMulInteger": matmul_integer,
    "QLinearConv": qlinear_conv,
    "QLinearMatMul": qlinear_matmul,
    "com.microsoft.QGemm": qgemm,
    "com.microsoft.QLinearAdd": elementwise("add"),
    "com.microsoft.QLinearAveragePool": pooling("AveragePool"),
    "com.microsoft.QLinearConcat": concatenation,
    "com.microsoft.QLinearGlobalAveragePool": pooling("GlobalAveragePool"),
    "com.microsoft.QLinearLeakyRelu": activation(_leaky_relu),
    "com.microsoft.QLinearMul": elementwise("multiply"),
    "com.microsoft.QLinearSigmoid": activation(_sigmoid),
    "com.microsoft.QLinearSoftmax": activation(_softmax),
}

LIMITS = {
    "QLinearConv": "scales or a bias that are not constant",
    "com.microsoft.QGemm": "scales or a bias that are not constant",
    "com.microsoft.QLinearAveragePool": "channels_last",
    "com.microsoft.QLinearGlobalAveragePool": "channels_last",
    "com.microsoft.QLinearSoftmax": "opset below 13",
}
"""What is not supported, by operator."""
