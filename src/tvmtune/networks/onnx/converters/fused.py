"""Convolutions and products of ONNX Runtime, fused with transpositions, scales and activations."""

from __future__ import annotations

from typing import Any

from tvmtune.networks.onnx.converters.activations import activate
from tvmtune.networks.onnx.converters.request import Converter, Node
from tvmtune.networks.relax_operators import shape

_PARAMETERS = ("alpha", "beta")
"""Of activations, in the order of ONNX Runtime."""


def fused_conv(node: Node) -> Any:
    """Convolution, then the sum with a fourth input, then an activation."""
    name = node.text("activation", "")
    values = node.attrs.get("activation_params", ())
    parameters = dict(zip(_PARAMETERS, values, strict=False))
    convolution = node.standard(*node.inputs[:2], node.input(2), operator="Conv")
    x = node.builder.emit(convolution)
    if node.input(3) is not None:
        x = node.op.add(x, node.inputs[3])
    return activate(node, x, name, parameters)


def fused_gemm(node: Node) -> Any:
    """Gemm, then an activation."""
    x = node.builder.emit(node.standard(*node.inputs[:2], node.input(2), operator="Gemm"))
    parameters = {
        name: node.attrs[f"activation_{name}"]
        for name in _PARAMETERS
        if f"activation_{name}" in node.attrs
    }
    return activate(node, x, node.text("activation", ""), parameters)


def fused_matmul(node: Node) -> Any:
    """MatMul of transposed inputs, times alpha."""
    left, right = (
        _transposed(node, x, f"trans{side}", f"transBatch{side}")
        for x, side in zip(node.inputs, "AB", strict=True)
    )
    product = node.op.matmul(left, right)
    alpha = node.attrs.get("alpha", 1.0)
    return product if alpha == 1.0 else node.op.multiply(product, float(alpha))


def _transposed(node: Node, x: Any, last: str, batch: str) -> Any:
    """``batch`` moves the first axis before the last one; ``last`` then swaps the last two."""
    axes = list(range(len(shape(x))))
    if len(axes) < 2:
        return x
    if node.attrs.get(batch, 0):
        axes = [*axes[1:-1], axes[0], axes[-1]]
    if node.attrs.get(last, 0):
        axes[-2:] = axes[:-3:-1]
    return x if axes == sorted(axes) else node.op.permute_dims(x, axes)


CONVERTERS: dict[str, Converter] = {
    "com.microsoft.FusedConv": fused_conv,
    "com.microsoft.FusedGemm": fused_gemm,
    "com.microsoft.FusedMatMul": fused_matmul,
    "com.microsoft.TransposeMatMul": fused_matmul,
}

_ACTIVATIONS = "activations other than Relu, LeakyRelu, Clip, Tanh, Sigmoid and HardSigmoid"

LIMITS = {
    "com.microsoft.FusedConv": _ACTIVATIONS,
    "com.microsoft.FusedGemm": _ACTIVATIONS,
}
"""What is not supported, by operator."""
