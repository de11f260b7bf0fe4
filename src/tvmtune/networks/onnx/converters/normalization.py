"""Converters of normalizations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from tvmtune.networks.onnx.converters.request import (
    Converter,
    Node,
    is_constant,
    required,
    reshaped_from,
)
from tvmtune.networks.relax_operators import dtype, shape


def layer_normalization(node: Node) -> Any:
    """The importer returns constants for mean and inverse deviation, the optional results."""
    if node.outputs == 1:
        return node.standard(*node.inputs)
    x = node.inputs[0]
    rank = len(shape(x))
    axes = list(range(node.attrs.get("axis", -1) % rank, rank))
    middle = node.emit(relax.op.mean(x, axes, keepdims=True))
    spread = node.emit(relax.op.variance(x, axes, keepdims=True))
    epsilon = relax.const(node.attrs.get("epsilon", 1e-5), dtype(x))
    inverse = node.emit(relax.op.rsqrt(node.emit(relax.op.add(spread, epsilon))))
    result = node.standard(*node.inputs)
    return relax.Tuple([result[0], middle, inverse])


def instance_normalization(node: Node) -> Any:
    """As group normalization, whose kernels are better. PyTorch exports that as Reshape to (N, groups,
    -1), InstanceNormalization and Reshape back; its channels then stay where they are. TVM has kernels
    for two dtypes."""
    x, scale, shift = node.inputs
    if dtype(x) not in ("float32", "float16"):
        return node.standard(x, scale, shift)
    groups = shape(x)[1]
    data = reshaped_from(node.builder, x)
    if not _is_split(shape(data), shape(x)) or not is_constant(scale, shift):
        data = x
    size = shape(data)[1] // groups
    if size > 1:
        scale, shift = (
            relax.const(np.repeat(required(each, "scale"), size), dtype(each))
            for each in (scale, shift)
        )
    result = node.op.nn.group_norm(
        data,
        scale,
        shift,
        num_groups=groups,
        channel_axis=1,
        axes=list(range(2, len(shape(data)))),
        epsilon=node.attrs.get("epsilon", 1e-5),
    )
    return relax.op.reshape(result, shape(x)) if shape(data) != shape(x) else result


def _is_split(data: list[int], groups: list[int]) -> bool:
    """Whether (N, C, ...) was reshaped to (N, groups, -1)."""
    return len(data) > 2 and len(groups) == 3 and data[0] == groups[0] and data[1] % groups[1] == 0


def rms_normalization(node: Node) -> Any:
    """The importer refuses normalization over all axes."""
    x, scale = node.inputs[:2]
    kind, rank = dtype(x), len(shape(x))
    axes = list(range(node.attrs.get("axis", -1) % rank, rank))
    wide = node.emit(relax.op.astype(x, "float32")) if kind in ("float16", "bfloat16") else x
    mean_square = node.emit(
        relax.op.mean(node.emit(relax.op.multiply(wide, wide)), axes, keepdims=True)
    )
    epsilon = relax.const(node.attrs.get("epsilon", 1e-5), dtype(wide))
    inverse = node.emit(relax.op.rsqrt(node.emit(relax.op.add(mean_square, epsilon))))
    result = node.emit(relax.op.multiply(wide, inverse))
    if dtype(result) != kind:
        result = node.emit(relax.op.astype(result, kind))
    return relax.op.multiply(result, scale)


def lp_normalization(node: Node) -> Any:
    """Zeros where the norm is 0."""
    x = node.inputs[0]
    kind, order = dtype(x), node.attrs.get("p", 2)
    if order not in (1, 2):
        raise ValueError(f"its attribute p={order} is not supported; 1 and 2 are")
    axis = node.attrs.get("axis", -1) % len(shape(x))
    op = node.op
    wide = op.astype(x, "float32") if kind in ("float16", "bfloat16") else x
    sizes = op.abs(wide) if order == 1 else op.multiply(wide, wide)
    total = op.sum(sizes, axis, keepdims=True)
    norm = total if order == 1 else op.sqrt(total)
    # Of zeros, 0 / inf instead of 0 / 0.
    divisor = op.where(op.equal(norm, 0.0), relax.const(math.inf, dtype(norm)), norm)
    result = op.divide(wide, divisor)
    return result if kind == dtype(result) else op.astype(result, kind)


CONVERTERS: dict[str, Converter] = {
    "InstanceNormalization": instance_normalization,
    "LayerNormalization": layer_normalization,
    "LpNormalization": lp_normalization,
    "RMSNormalization": rms_normalization,
}
