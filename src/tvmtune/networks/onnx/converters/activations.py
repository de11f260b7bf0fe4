"""Activations, alone and as the last step of ONNX Runtime's fused operators."""

from __future__ import annotations

from typing import Any

from tvmtune.networks.onnx.converters.request import Converter, Node, dtype


def gelu(node: Node) -> Any:
    """``x * normal_cdf(x)``"""
    return node.op.nn.gelu(_biased(node))


def fast_gelu(node: Node) -> Any:
    """GELU by the hyperbolic tangent."""
    return node.op.nn.gelu_tanh(_biased(node))


def quick_gelu(node: Node) -> Any:
    """``x * sigmoid(alpha * x)``"""
    x = node.inputs[0]
    inner = node.op.multiply(x, float(node.attrs.get("alpha", 1.702)))
    return node.op.multiply(x, node.op.sigmoid(inner))


def activate(node: Node, x: Any, name: str, parameters: list[float]) -> Any:
    """The activation that a fused operator names; ``parameters`` in the order of ONNX Runtime."""
    op = node.op
    if name in ("", "Identity"):
        return x
    if name == "Relu":
        return op.nn.relu(x)
    if name == "Tanh":
        return op.tanh(x)
    if name == "Sigmoid":
        return op.sigmoid(x)
    if name == "LeakyRelu":
        return op.nn.leakyrelu(x, alpha=parameters[0] if parameters else 0.01)
    if name == "Clip" and len(parameters) == 2:
        return op.minimum(op.maximum(x, float(parameters[0])), float(parameters[1]))
    if name == "HardSigmoid":
        alpha, beta = parameters or (0.2, 0.5)
        x = op.add(op.multiply(x, float(alpha)), float(beta))
        return op.minimum(op.maximum(x, 0.0), 1.0)
    raise ValueError(f"its activation {name} is not supported")


def _biased(node: Node) -> Any:
    x, bias = node.inputs[0], node.input(1)
    assert dtype(x).startswith(("float", "bfloat"))
    return x if bias is None else node.op.add(x, bias)


CONVERTERS: dict[str, Converter] = {
    "com.microsoft.BiasGelu": gelu,
    "com.microsoft.FastGelu": fast_gelu,
    "com.microsoft.Gelu": gelu,
    "com.microsoft.QuickGelu": quick_gelu,
}
