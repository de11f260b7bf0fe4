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


def batch_normalization(node: Node) -> Any:
    """The importer ignores that it is in training mode."""
    if node.attrs.get("training_mode", 0):
        raise ValueError("it is in training mode: export the network in evaluation mode")
    return node.standard(*node.inputs)


def layer_normalization(node: Node) -> Any:
    """The importer returns constants for mean and inverse deviation, the optional results, and derives
    the axes from the rank of the scale, which need not have all of them."""
    x = node.inputs[0]
    rank = len(shape(x))
    axes = list(range(node.attrs.get("axis", -1) % rank, rank))
    result = _layer_norm(node, shape(x)[axes[0] :])
    if node.outputs == 1:
        return result
    middle = node.emit(relax.op.mean(x, axes, keepdims=True))
    spread = node.emit(relax.op.variance(x, axes, keepdims=True))
    epsilon = relax.const(node.attrs.get("epsilon", 1e-5), dtype(x))
    inverse = node.emit(relax.op.rsqrt(node.emit(relax.op.add(spread, epsilon))))
    return relax.Tuple([result, middle, inverse])


def _layer_norm(node: Node, extents: list[int]) -> Any:
    """The first result of a node that normalizes axes of these extents."""
    x, scale = node.inputs[:2]
    shift = node.input(2)
    if all(each is None or shape(each) == extents for each in (scale, shift)):
        return node.standard(x, scale, shift)[0]
    kind = dtype(scale)
    normal = node.standard(x, relax.const(np.ones(extents), kind), None)[0]
    scaled = node.op.multiply(normal, scale)
    return scaled if shift is None else node.op.add(scaled, shift)


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
    rank = len(shape(x))
    axes = list(range(node.attrs.get("axis", -1) % rank, rank))
    wide = _widened(node, x)
    mean_square = node.emit(
        relax.op.mean(node.emit(relax.op.multiply(wide, wide)), axes, keepdims=True)
    )
    epsilon = relax.const(node.attrs.get("epsilon", 1e-5), dtype(wide))
    inverse = node.emit(relax.op.rsqrt(node.emit(relax.op.add(mean_square, epsilon))))
    result = node.op.multiply(wide, inverse)
    return relax.op.multiply(node.op.astype(result, dtype(x)), scale)


def lp_normalization(node: Node) -> Any:
    """Zeros where the norm is 0."""
    x = node.inputs[0]
    order = node.attrs.get("p", 2)
    if order not in (1, 2):
        raise ValueError(f"its attribute p={order} is not supported; 1 and 2 are")
    axis = node.attrs.get("axis", -1) % len(shape(x))
    op = node.op
    wide = _widened(node, x)
    sizes = op.abs(wide) if order == 1 else op.multiply(wide, wide)
    total = op.sum(sizes, axis, keepdims=True)
    norm = total if order == 1 else op.sqrt(total)
    # Of zeros, 0 / inf instead of 0 / 0.
    divisor = op.where(op.equal(norm, 0.0), relax.const(math.inf, dtype(norm)), norm)
    return node.op.astype(op.divide(wide, divisor), dtype(x))


def local_response_normalization(node: Node) -> Any:
    """The importer's constants are float32, whatever the input is, and it refuses even sizes."""
    x, size, op = node.inputs[0], node.attrs["size"], node.op
    rank = len(shape(x))
    if rank not in (3, 4):
        raise ValueError(f"its input has {rank} axes; 3 or 4 are supported")
    wide = _widened(node, x)
    squares = op.expand_dims(op.multiply(wide, wide), axis=1)
    # The window moves along the channels.
    ones, zeros = (1,) * (rank - 2), (0,) * (rank - 2)
    pool = op.nn.avg_pool2d if rank == 3 else op.nn.avg_pool3d
    means = pool(
        squares,
        pool_size=(size, *ones),
        strides=(1, *ones),
        padding=((size - 1) // 2, *zeros, size // 2, *zeros),
        layout="NCHW" if rank == 3 else "NCDHW",
        ceil_mode=False,
        count_include_pad=True,
    )
    scaled = op.multiply(op.squeeze(means, axis=1), float(node.attrs.get("alpha", 1e-4)))
    base = op.add(scaled, float(node.attrs.get("bias", 1.0)))
    divisor = op.power(base, float(node.attrs.get("beta", 0.75)))
    return node.op.astype(op.divide(wide, divisor), dtype(x))


def mean_variance_normalization(node: Node) -> Any:
    """The importer takes the variance from a difference of means, divides by 0 where all values are
    equal, and has float32 constants, whatever the input is."""
    x, op = node.inputs[0], node.op
    axes = list(node.attrs.get("axes", (0, 2, 3)))
    wide = _widened(node, x)
    centered = op.subtract(wide, op.mean(wide, axes, keepdims=True))
    variance = op.mean(op.multiply(centered, centered), axes, keepdims=True)
    result = op.divide(centered, op.add(op.sqrt(variance), 1e-9))
    return node.op.astype(result, dtype(x))


def _widened(node: Node, x: Any) -> Any:
    """In float32 if it is narrower, for sums."""
    return node.op.astype(x, "float32") if dtype(x) in ("float16", "bfloat16") else x


CONVERTERS: dict[str, Converter] = {
    "BatchNormalization": batch_normalization,
    "InstanceNormalization": instance_normalization,
    "LRN": local_response_normalization,
    "LayerNormalization": layer_normalization,
    "LpNormalization": lp_normalization,
    "MeanVarianceNormalization": mean_variance_normalization,
    "RMSNormalization": rms_normalization,
}

LIMITS = {
    "BatchNormalization": "training mode",
    "LRN": "inputs with other than 3 or 4 axes",
}
"""What is not supported, by operator."""
