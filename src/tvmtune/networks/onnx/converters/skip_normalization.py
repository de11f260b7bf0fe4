"""Normalizations of ONNX Runtime, fused with sums or with the embeddings of BERT."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tvmtune.networks.onnx.converters.indexing import indices
from tvmtune.networks.onnx.converters.request import Converter, Node
from tvmtune.networks.relax_operators import dtype, shape


def skip_layer_normalization(node: Node) -> Any:
    """The importer ignores a missing shift, and has no sum among its results."""
    scale, shift = node.inputs[2], node.input(3)
    total = _sum(node, node.input(4))
    if shift is None:
        shift = relax.const(np.zeros(shape(scale)), dtype(scale))
    epsilon = node.attrs.get("epsilon", 1e-12)
    result = node.op.nn.layer_norm(total, scale, shift, axes=[-1], epsilon=epsilon)
    return _with_sum(node, result, total)


def skip_simplified_layer_normalization(node: Node) -> Any:
    """The root of the mean square replaces the deviation."""
    total = _sum(node, node.input(3))
    result = root_mean_square(node, total, node.inputs[2], node.attrs.get("epsilon", 1e-12))
    return _with_sum(node, result, total)


def simplified_layer_normalization(node: Node) -> Any:
    """RMSNormalization, as ONNX Runtime called it before the standard had it."""
    node.refuse({"axis": -1})
    if node.outputs > 1:
        raise ValueError("its second result is not supported")
    x, scale = node.inputs
    return root_mean_square(node, x, scale, node.attrs.get("epsilon", 1e-5))


def embed_layer_normalization(node: Node) -> Any:
    """The importer lacks positions, and its mask index and sum."""
    ids, segments, words, places, kinds, scale, shift = node.inputs[:7]
    batch, length = shape(ids)
    total = _embedded(node, words, ids)
    positions = node.input(8)
    if positions is None:
        rows = node.op.strided_slice(places, [0], [0], [length])
        total = node.op.add(total, node.op.expand_dims(rows, 0))
    else:
        total = node.op.add(total, _embedded(node, places, positions))
    if segments is not None:
        total = node.op.add(total, _embedded(node, kinds, segments))
    epsilon = node.attrs.get("epsilon", 1e-12)
    result = node.op.nn.layer_norm(total, scale, shift, axes=[-1], epsilon=epsilon)
    if node.outputs == 1:
        return result
    mask = node.input(7)
    if mask is None:
        count = relax.const(np.zeros(batch), "int32")
    else:
        count = node.op.sum(node.op.astype(mask, "int32"), axis=[1])
    return node.results(result, count, total)


def root_mean_square(node: Node, x: Any, scale: Any, epsilon: float) -> Any:
    """Divide by the root of the mean square over the last axis."""
    square = node.op.mean(node.op.multiply(x, x), [-1], keepdims=True)
    inverse = node.op.rsqrt(node.op.add(square, float(epsilon)))
    return node.op.multiply(node.op.multiply(x, inverse), scale)


def _embedded(node: Node, table: Any, ids: Any) -> Any:
    return node.op.take(table, indices(node, ids, [shape(table)[0]]), axis=0, mode="clip")


def _sum(node: Node, bias: Any) -> Any:
    total = node.op.add(*node.inputs[:2])
    return total if bias is None else node.op.add(total, bias)


def _with_sum(node: Node, result: Any, total: Any) -> Any:
    """The results; ONNX Runtime leaves mean and deviation, the second and the third, empty on CPUs."""
    if node.outputs in (2, 3):
        raise ValueError("its second and third result are not supported")
    empty = relax.const(0.0, dtype(total))
    return node.results(result, empty, empty, total)


CONVERTERS: dict[str, Converter] = {
    "SimplifiedLayerNormalization": simplified_layer_normalization,
    "com.microsoft.EmbedLayerNormalization": embed_layer_normalization,
    "com.microsoft.SkipLayerNormalization": skip_layer_normalization,
    "com.microsoft.SkipSimplifiedLayerNormalization": skip_simplified_layer_normalization,
}
"""Converters by operator. In ONNX Runtime's files SimplifiedLayerNormalization has no domain."""

LIMITS = {
    "SimplifiedLayerNormalization": "axes other than the last; the inverse deviation as a result",
    "com.microsoft.SkipLayerNormalization": "mean and inverse deviation as results",
    "com.microsoft.SkipSimplifiedLayerNormalization": "mean and inverse deviation as results",
}
"""What is not supported, by operator."""
