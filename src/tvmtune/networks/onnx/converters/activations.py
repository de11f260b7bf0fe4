"""Activations, alone and as the last step of ONNX Runtime's fused operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import relax

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


def elu(node: Node) -> Any:
    """The importer's constants are float32, whatever the input is."""
    return _elu(node, float(node.attrs.get("alpha", 1.0)))


def selu(node: Node) -> Any:
    """See :func:`elu`."""
    alpha = float(node.attrs.get("alpha", 1.67326319217681884765625))
    gamma = relax.const(node.attrs.get("gamma", 1.05070102214813232421875), dtype(node.inputs[0]))
    return node.op.multiply(gamma, _elu(node, alpha))


def thresholded_relu(node: Node) -> Any:
    """The importer multiplies by 0, which leaves NaN of minus infinity, and see :func:`elu`."""
    x, op = node.inputs[0], node.op
    above = op.greater(x, float(node.attrs.get("alpha", 1.0)))
    return op.where(above, x, relax.const(0.0, dtype(x)))


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


def _elu(node: Node, alpha: float) -> Any:
    """``x if x > 0 else alpha * (exp(x) - 1)``"""
    x, op = node.inputs[0], node.op
    kind = dtype(x)
    below = op.nn.relu(op.subtract(relax.const(1.0, kind), op.exp(x)))
    return op.add(op.multiply(relax.const(-alpha, kind), below), op.nn.relu(x))


def _biased(node: Node) -> Any:
    x, bias = node.inputs[0], node.input(1)
    if not dtype(x).startswith(("float", "bfloat")):
        raise ValueError(f"its input of {dtype(x)} is not supported")
    return x if bias is None else node.op.add(x, bias)


CONVERTERS: dict[str, Converter] = {
    "Elu": elu,
    "Selu": selu,
    "ThresholdedRelu": thresholded_relu,
    "com.microsoft.BiasGelu": gelu,
    "com.microsoft.FastGelu": fast_gelu,
    "com.microsoft.Gelu": gelu,
    "com.microsoft.QuickGelu": quick_gelu,
}
