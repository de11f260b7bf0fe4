"""Converters of normalizations."""

from __future__ import annotations

from typing import Any

from tvm import relax

from tvmtune.networks.onnx.converters.request import Converter, Node, dtype, shape


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


CONVERTERS: dict[str, Converter] = {
    "LayerNormalization": layer_normalization,
    "RMSNormalization": rms_normalization,
}
