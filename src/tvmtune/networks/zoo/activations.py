"""Smooth activation functions of the zoo, as the operators that exporters write for them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tvmtune.networks.zoo.graph_builder import Value
from tvmtune.networks.zoo.moments import transformed

if TYPE_CHECKING:
    from collections.abc import Callable

    from tvmtune.networks.zoo.graph_builder import GraphBuilder

    Activation = Callable[[GraphBuilder, Value], Value]
    """One of the functions below."""


def relu(g: GraphBuilder, x: Value) -> Value:
    """``max(0, x)``."""
    return g.relu(x)


def hard_swish(g: GraphBuilder, x: Value) -> Value:
    """``x * clip(x / 6 + 1 / 2, 0, 1)``."""
    name = g.node("HardSwish", f"{x.name}.hardswish", [x.name])
    return Value(name, x.shape, transformed(x.moments, lambda v: v * _hard_sigmoid(v)))


def hard_sigmoid(g: GraphBuilder, x: Value) -> Value:
    """``clip(x / 6 + 1 / 2, 0, 1)``."""
    name = g.node("HardSigmoid", f"{x.name}.hardsigmoid", [x.name], alpha=1.0 / 6.0, beta=0.5)
    return Value(name, x.shape, transformed(x.moments, _hard_sigmoid))


def sigmoid(g: GraphBuilder, x: Value) -> Value:
    """``1 / (1 + exp(-x))``."""
    name = g.node("Sigmoid", f"{x.name}.sigmoid", [x.name])
    return Value(name, x.shape, transformed(x.moments, _sigmoid))


def silu(g: GraphBuilder, x: Value) -> Value:
    """``x * sigmoid(x)``."""
    gate = g.node("Sigmoid", f"{x.name}.sigmoid", [x.name])
    name = g.node("Mul", f"{x.name}.silu", [x.name, gate])
    return Value(name, x.shape, transformed(x.moments, lambda v: v * _sigmoid(v)))


def gelu(g: GraphBuilder, x: Value) -> Value:
    """``x * (1 + erf(x / sqrt(2))) / 2``."""
    name = f"{x.name}.gelu"
    scaled = g.node("Div", f"{name}.scaled", [x.name, g.scalar("gelu.root", math.sqrt(2.0))])
    curve = g.node("Erf", f"{name}.erf", [scaled])
    shifted = g.node("Add", f"{name}.shifted", [curve, g.scalar("gelu.one", 1.0)])
    half = g.node("Mul", f"{name}.half", [g.scalar("gelu.half", 0.5), shifted])
    return _gelu_value(g.node("Mul", name, [x.name, half]), x)


def gelu_tanh(g: GraphBuilder, x: Value) -> Value:
    """GELU with ``tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))`` in place of the error function."""
    name = f"{x.name}.gelu"
    half = g.node("Mul", f"{name}.half", [x.name, g.scalar("gelu.half", 0.5)])
    cube = g.node("Pow", f"{name}.cube", [x.name, g.scalar("gelu.three", 3.0)])
    small = g.node("Mul", f"{name}.small", [cube, g.scalar("gelu.cubic", 0.044715)])
    bent = g.node("Add", f"{name}.bent", [x.name, small])
    root = g.scalar("gelu.root", math.sqrt(2.0 / math.pi))
    curve = g.node("Tanh", f"{name}.tanh", [g.node("Mul", f"{name}.scaled", [bent, root])])
    shifted = g.node("Add", f"{name}.shifted", [curve, g.scalar("gelu.one", 1.0)])
    return _gelu_value(g.node("Mul", name, [half, shifted]), x)


def _gelu_value(name: str, x: Value) -> Value:
    # The version with tanh, which NumPy has, for both: they differ by less than 1e-3.
    return Value(name, x.shape, transformed(x.moments, _gelu))


def _hard_sigmoid(x: np.ndarray) -> np.ndarray:
    return np.clip(x / 6.0 + 0.5, 0.0, 1.0)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))
