"""Rotary position embeddings."""

from __future__ import annotations

from typing import Any

from tvmtune.networks.onnx.converters import attention_core
from tvmtune.networks.onnx.converters.attention_core import merge_heads, split_heads
from tvmtune.networks.onnx.converters.indexing import indices
from tvmtune.networks.onnx.converters.request import Converter, Node
from tvmtune.networks.relax_operators import shape


def standard(node: Node) -> Any:
    """The operator of the standard, whose tables are per token if there are no positions."""
    x, cosines, sines = node.inputs[:3]
    positions = node.input(3)
    if positions is not None:
        cosines, sines = (lookup(node, table, positions) for table in (cosines, sines))
    return _rotary(node, x, cosines, sines)


def microsoft(node: Node) -> Any:
    """The operator of ONNX Runtime: other inputs, and positions may be a single offset."""
    node.refuse({"is_packed_batching": 0, "scale": 1.0})
    x, positions, cosines, sines = node.inputs
    extents = shape(x)
    batch, length = extents[0], extents[-2]
    if shape(positions) == [1]:
        positions = attention_core.positions(node, positions, length)
        positions = node.op.broadcast_to(positions, (batch, 1, length, 1))
    positions = node.op.reshape(positions, (batch, length))
    cosines, sines = (lookup(node, table, positions) for table in (cosines, sines))
    return _rotary(node, x, cosines, sines)


def lookup(node: Node, table: Any, positions: Any) -> Any:
    """Rows of a table (positions, half) at positions (batch, length)."""
    ids = indices(node, positions, [shape(table)[0]])
    return node.op.take(table, ids, axis=0, mode="clip")


def rotate(node: Node, x: Any, cosines: Any, sines: Any, *, interleaved: bool) -> Any:
    """Rotate pairs of channels of x (batch, heads, length, size) by angles (batch, length, half).

    Pairs are neighbors if ``interleaved``, else half the rotated channels apart; channels beyond them
    stay.
    """
    op = node.op
    batch, heads, length, size = shape(x)
    half = shape(cosines)[-1]
    if 2 * half > size:
        raise ValueError(f"{2 * half} rotated channels do not fit a head of {size}")
    cosines, sines = (op.expand_dims(table, 1) for table in (cosines, sines))
    rest = op.strided_slice(x, [3], [2 * half], [size]) if 2 * half < size else None
    if interleaved:
        pairs = x if rest is None else op.strided_slice(x, [3], [0], [2 * half])
        pairs = op.reshape(pairs, (batch, heads, length, half, 2))
        first, second = (
            op.squeeze(op.strided_slice(pairs, [4], [i], [i + 1]), [4]) for i in (0, 1)
        )
    else:
        first, second = (op.strided_slice(x, [3], [i * half], [(i + 1) * half]) for i in (0, 1))
    real = op.subtract(op.multiply(first, cosines), op.multiply(second, sines))
    imaginary = op.add(op.multiply(first, sines), op.multiply(second, cosines))
    if interleaved:
        rotated = op.reshape(op.stack([real, imaginary], axis=4), (batch, heads, length, 2 * half))
        return rotated if rest is None else op.concat([rotated, rest], axis=3)
    parts = [real, imaginary] if rest is None else [real, imaginary, rest]
    return op.concat(parts, axis=3)


def _rotary(node: Node, x: Any, cosines: Any, sines: Any) -> Any:
    """x is of rank 3 or 4, and so is the result; tables are (batch, length, half)."""
    merged = len(shape(x)) == 3
    rotated = node.attrs.get("rotary_embedding_dim", 0)
    if merged:
        heads = node.attrs.get("num_heads", 0)
        x = split_heads(node, x, heads or shape(x)[2] // (2 * shape(cosines)[-1]))
    if rotated and rotated != 2 * shape(cosines)[-1]:
        cosines, sines = (
            node.op.strided_slice(table, [2], [0], [rotated // 2]) for table in (cosines, sines)
        )
    interleaved = bool(node.attrs.get("interleaved", 0))
    x = rotate(node, x, cosines, sines, interleaved=interleaved)
    return merge_heads(node, x) if merged else x


CONVERTERS: dict[str, Converter] = {
    "RotaryEmbedding": standard,
    "com.microsoft.RotaryEmbedding": microsoft,
}

LIMITS = {
    "com.microsoft.RotaryEmbedding": "ragged batches; a scale other than 1",
}
"""What is not supported, by operator."""
