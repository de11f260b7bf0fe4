"""Activations, alone and as the last step of ONNX Runtime's fused operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvmtune.networks.onnx.converters.request import Converter, Node
from tvmtune.networks.relax_operators import dtype


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


def activate(node: Node, x: Any, name: str, parameters: Mapping[str, float]) -> Any:
    """The activation that a fused operator names; ``parameters`` are ``alpha`` and ``beta``.

    Those that are missing have the defaults of ONNX.
    """
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
        return op.nn.leakyrelu(x, alpha=float(parameters.get("alpha", 0.01)))
    if name == "Clip":
        if "alpha" in parameters:
            x = op.maximum(x, float(parameters["alpha"]))
        return op.minimum(x, float(parameters["beta"])) if "beta" in parameters else x
    if name == "HardSigmoid":
        alpha, beta = parameters.get("alpha", 0.2), parameters.get("beta", 0.5)
        x = op.add(op.multiply(x, float(alpha)), float(beta))
        return op.minimum(op.maximum(x, 0.0), 1.0)
    raise ValueError(f"its activation {name} is not supported")


def _biased(node: Node) -> Any:
    x, bias = node.inputs[0], node.input(1)
    if not dtype(x).startswith(("float", "bfloat")):
        raise ValueError(f"its input of {dtype(x)} is not supported")
    return x if bias is None else node.op.add(x, bias)


CONVERTERS: dict[str, Converter] = {
    "com.microsoft.BiasGelu": gelu,
    "com.microsoft.FastGelu": fast_gelu,
    "com.microsoft.Gelu": gelu,
    "com.microsoft.QuickGelu": quick_gelu,
}
