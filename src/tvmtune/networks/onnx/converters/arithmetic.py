"""Converters of element-wise operators, of reductions, of cumulative products and of Einstein sums."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from tvm import relax

from tvmtune.networks import einsum
from tvmtune.networks.importer_helpers import constant_power
from tvmtune.networks.onnx.converters.request import (
    Converter,
    Node,
    constant,
    is_constant,
    is_tensor,
    required,
)
from tvmtune.networks.relax_operators import dtype, shape


def variadic(operator: Callable[..., Any]) -> Converter:
    """Max, Min and Sum of any number of inputs, pair by pair. The importer stacks copies of all inputs,
    which costs memory and which ConvertLayout cannot handle."""

    def convert(node: Node) -> Any:
        if is_constant(*node.inputs):
            return node.standard(*node.inputs)
        return functools.reduce(lambda a, b: node.emit(operator(a, b)), node.inputs)

    return convert


def mean(node: Node) -> Any:
    """Mean of any number of inputs; see :func:`variadic`."""
    if is_constant(*node.inputs):
        return node.standard(*node.inputs)
    total = node.emit(variadic(relax.op.add)(node))
    return relax.op.divide(total, relax.const(len(node.inputs), dtype(total)))


def clip(node: Node) -> Any:
    """The importer emits kernels, which ConvertLayout cannot see through: each ReLU6 of MobileNet-v2
    would be transposed twice."""
    x = node.inputs[0]
    for position, (name, operator) in enumerate(
        (("min", relax.op.maximum), ("max", relax.op.minimum)), start=1
    ):
        bound = node.input(position)
        if node.opset < 11 and name in node.attrs:
            bound = relax.const(node.attrs[name], dtype(x))
        if bound is not None:
            x = node.emit(operator(x, bound))
    return x


def celu(node: Node) -> Any:
    """The standard's definition mixes types for dtypes other than float32."""
    x = node.inputs[0]
    alpha = relax.const(node.attrs.get("alpha", 1.0), dtype(x))
    zero, one = relax.const(0.0, dtype(x)), relax.const(1.0, dtype(x))
    grown = node.emit(relax.op.exp(node.emit(relax.op.divide(x, alpha))))
    below = node.emit(relax.op.multiply(alpha, node.emit(relax.op.subtract(grown, one))))
    low = node.emit(relax.op.minimum(zero, below))
    return relax.op.add(node.emit(relax.op.maximum(zero, x)), low)


def equal(node: Node) -> Any:
    """The importer's comparison of booleans does not compile."""
    first, second = node.inputs
    if not is_tensor(first) or not is_tensor(second) or dtype(first) != "bool":
        return node.standard(first, second)
    return relax.op.logical_not(node.emit(relax.op.logical_xor(first, second)))


def is_inf(node: Node) -> Any:
    """The importer ignores the attributes."""
    x = node.inputs[0]
    wanted = [node.attrs.get(f"detect_{sign}", 1) for sign in ("positive", "negative")]
    parts = [
        node.emit(relax.op.equal(x, relax.const(value, dtype(x))))
        for value, want in zip((math.inf, -math.inf), wanted, strict=True)
        if want
    ]
    if not parts:
        return relax.op.zeros(relax.ShapeExpr(shape(x)), "bool")
    return parts[0] if len(parts) == 1 else relax.op.logical_or(*parts)


def power(node: Node) -> Any:
    """The importer refuses integers and operands of different types. Squares, cubes and roots become
    cheaper operators."""
    base, exponent = node.inputs
    kind = dtype(base)
    floating = kind.startswith(("float", "bfloat"))
    value = constant(exponent)
    if value is not None and value.size == 1 and value.ndim <= len(shape(base)):
        number = float(value.reshape(-1)[0])
        result = constant_power(node.emit, base, number, floating=floating)
        if result is not None:
            return result
    if floating:
        if dtype(exponent) != kind:
            exponent = node.emit(relax.op.astype(exponent, kind))
        return node.standard(base, exponent)
    wide = [node.emit(relax.op.astype(i, "float64")) for i in (base, exponent)]
    result = node.emit(relax.op.power(*wide))
    if not dtype(exponent).startswith("float"):
        result = node.emit(relax.op.round(result))
    return relax.op.astype(result, kind)


def reduce_bool(node: Node) -> Any:
    """The importer refuses ReduceMax and ReduceMin of booleans."""
    x = node.inputs[0]
    if dtype(x) != "bool":
        return node.standard(*node.inputs)
    numbers = node.emit(relax.op.astype(x, "int8"))
    return relax.op.astype(node.standard(numbers, *node.inputs[1:]), "bool")


def cumulative_product(node: Node) -> Any:
    x = node.inputs[0]
    axis, rank = int(required(node.inputs[1], "axis").item()), len(shape(x))
    if not -rank <= axis < rank:
        raise ValueError(f"its axis {axis} is none of {rank}")
    axis %= rank
    exclusive, reverse = (bool(node.attrs.get(name, 0)) for name in ("exclusive", "reverse"))
    if reverse:
        x = node.op.flip(x, axis)
    result = node.op.cumprod(x, axis, exclusive=exclusive)
    return node.op.flip(result, axis) if reverse else result


def einstein_sum(node: Node) -> Any:
    """A matrix product where it is one (:mod:`tvmtune.networks.einsum`)."""
    if is_constant(*node.inputs):
        return node.standard(*node.inputs)
    result = einsum.matmul(node.builder.emit, node.text("equation", ""), *node.inputs)
    return node.standard(*node.inputs) if result is None else result


CONVERTERS: dict[str, Converter] = {
    "Celu": celu,
    "Clip": clip,
    "CumProd": cumulative_product,
    "Einsum": einstein_sum,
    "Equal": equal,
    "IsInf": is_inf,
    "Max": variadic(relax.op.maximum),
    "Mean": mean,
    "Min": variadic(relax.op.minimum),
    "Pow": power,
    "ReduceMax": reduce_bool,
    "ReduceMin": reduce_bool,
    "Sum": variadic(relax.op.add),
}

LIMITS = {"CumProd": "an axis that is not constant"}
"""What is not supported, by operator."""
