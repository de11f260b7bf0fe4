"""GroupQueryAttention, ONNX Runtime's operator of decoders: a cache of keys and rotary embeddings.

A sequence has ``seqlens_k + 1`` tokens, of which the last ``length`` are new. They are written to the
cache after those of the past, which may be fewer than the cache has room for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from tvmtune.networks.onnx.cache_names import is_past
from tvmtune.networks.onnx.converters.attention_core import (
    Mask,
    attend,
    before,
    extend,
    merge_heads,
    positions,
    split_heads,
    up_to,
    window,
)
from tvmtune.networks.onnx.converters.request import Converter, Node, required
from tvmtune.networks.onnx.converters.rotary import lookup, rotate
from tvmtune.networks.relax_operators import dtype, shape

_SUPPORTED = {
    "k_quant_type": b"NONE",
    "kv_cache_bit_width": 0,
    "qk_output": 0,
    "sliding_window_cache": 0,
    "v_quant_type": b"NONE",
}
"""Attributes and the only value of each that is supported."""

_UNSUPPORTED_INPUTS = {
    12: "a quantized cache",
    13: "a quantized cache",
    14: "the normalization of its queries",
    15: "the normalization of its keys",
    16: "the input query_seqlens",
}


@dataclass(frozen=True)
class _Lengths:
    """Where the new tokens go; ``starts`` and ``totals`` (batch) are None if there is no past."""

    new: int
    keys: int
    """Extent of the cache after this step."""
    totals: Any
    starts: Any
    prompt: bool
    """Whether the new tokens are the first."""


def group_query_attention(node: Node) -> Any:
    node.refuse(_SUPPORTED)
    for place, what in _UNSUPPORTED_INPUTS.items():
        if node.input(place) is not None:
            raise ValueError(f"{what} is not supported")
    query, key, value = _heads(node)
    lengths = _lengths(node, shape(query)[2])
    if node.attrs.get("do_rotary", 0):
        query, key = _rotated(node, query, key, lengths)
    key = _cached(node, node.input(3), key, lengths)
    value = _cached(node, node.input(4), value, lengths)
    mask = _mask(node, lengths)
    if node.input(10) is not None:
        mask.biases.append(extend(node, node.inputs[10], lengths.keys))
    sink = node.input(11)
    if sink is None and node.attrs.get("smooth_softmax", 0) == 1:
        sink = relax.const(np.zeros(shape(query)[1]), dtype(query))
    attended = attend(
        node,
        query,
        key,
        value,
        mask,
        scale=node.attrs.get("scale") or None,
        softcap=node.attrs.get("softcap", 0.0),
        sink=sink,
    )
    return node.results(merge_heads(node, attended.output), key, value)


def _heads(node: Node) -> list[Any]:
    """Queries, keys and values, which may come as one tensor."""
    heads, groups = node.attrs["num_heads"], node.attrs["kv_num_heads"]
    query, key, value = node.inputs[0], node.input(1), node.input(2)
    if key is None or value is None:
        size = shape(query)[2] // (heads + 2 * groups)
        ends = [heads * size, (heads + groups) * size, (heads + 2 * groups) * size]
        query, key, value = (
            node.op.strided_slice(query, [2], [start], [end])
            for start, end in zip([0, *ends], ends, strict=False)
        )
    counts = (heads, groups, groups)
    return [
        split_heads(node, x, count) for x, count in zip((query, key, value), counts, strict=True)
    ]


def _lengths(node: Node, new: int) -> _Lengths:
    last, past = node.inputs[5], node.input(3)
    last = node.op.reshape(last, (-1,))
    totals = node.op.add(last, relax.const(1, dtype(last)))
    if past is None or 0 in shape(past):
        return _Lengths(new, new, totals, None, True)
    longest = int(required(node.inputs[6], "total_sequence_length").reshape(-1)[0])
    if longest == new:  # the first tokens, with an empty cache
        starts = relax.const(np.zeros(shape(last), dtype(last)), dtype(last))
    else:
        starts = node.op.subtract(totals, relax.const(new, dtype(totals)))
    return _Lengths(new, max(shape(past)[2], longest), totals, starts, longest == new)


def _rotated(node: Node, query: Any, key: Any, lengths: _Lengths) -> tuple[Any, Any]:
    batch = shape(query)[0]
    ids = node.input(9)
    if lengths.prompt:  # counted from the first position, as ONNX Runtime does
        steps = np.tile(np.arange(lengths.new), (batch, 1))
        if ids is None:
            ids = relax.const(steps, "int64")
        else:
            first = node.op.strided_slice(node.op.reshape(ids, (-1,)), [0], [0], [1])
            ids = node.op.add(first, relax.const(steps, dtype(ids)))
    elif ids is None:
        ids = positions(node, lengths.starts, lengths.new)
        ids = node.op.reshape(ids, (batch, lengths.new))
    tables = [lookup(node, node.inputs[place], ids) for place in (7, 8)]
    interleaved = bool(node.attrs.get("rotary_interleaved", 0))
    rotated = (rotate(node, x, *tables, interleaved=interleaved) for x in (query, key))
    return next(rotated), next(rotated)


def _cached(node: Node, past: Any, new: Any, lengths: _Lengths) -> Any:
    """The cache after this step, with zeros beyond the last token as in ONNX Runtime. That of the
    network, which is its state, keeps what it has there, as in ONNX Runtime where past and present
    share memory."""
    if lengths.starts is None:
        return new
    batch, groups, room, size = shape(past)
    kind = dtype(lengths.starts)
    if lengths.keys == room and isinstance(past, relax.Var) and is_past(str(past.name)):
        places = node.op.reshape(lengths.starts, (batch, 1, 1, 1))
        steps = np.arange(lengths.new).reshape(1, 1, -1, 1).astype(kind)
        places = node.op.add(places, relax.const(steps, kind))
        places = node.op.broadcast_to(places, (batch, groups, lengths.new, size))
        return node.op.scatter_elements(past, places, new, axis=2)
    both = node.op.concat([past, new], axis=2)
    index = relax.const(np.arange(lengths.keys).reshape(1, 1, -1, 1).astype(kind), kind)
    start = node.op.reshape(lengths.starts, (batch, 1, 1, 1))
    # Row t holds token t of the past, or token t - start of the new ones, which follow all of its rows.
    moved = node.op.add(node.op.subtract(index, start), relax.const(room, kind))
    source = node.op.where(node.op.less(index, start), index, moved)
    source = node.op.minimum(source, relax.const(room + lengths.new - 1, kind))
    source = node.op.maximum(source, relax.const(0, kind))
    source = node.op.broadcast_to(source, (batch, groups, lengths.keys, size))
    tokens = node.op.gather_elements(both, source, axis=2)
    end = node.op.add(start, relax.const(lengths.new, kind))
    return node.op.where(node.op.less(index, end), tokens, relax.const(0.0, dtype(new)))


def _mask(node: Node, lengths: _Lengths) -> Mask:
    causal, left = bool(node.attrs.get("causal", 1)), node.attrs.get("local_window_size", -1)
    wide = None if left < 0 else left  # the token itself counts
    seen = [before(node, lengths.totals, lengths.keys)]
    if lengths.starts is None:
        if causal:
            seen = [window(lengths.new, lengths.keys, left=wide)]
    elif causal:
        last = positions(node, lengths.starts, lengths.new)
        seen.append(up_to(node, last, lengths.keys))
        if wide is not None:
            outside = node.op.subtract(last, relax.const(wide, dtype(last)))
            seen.append(node.op.logical_not(up_to(node, outside, lengths.keys)))
    return Mask(allowed=seen)


CONVERTERS: dict[str, Converter] = {"com.microsoft.GroupQueryAttention": group_query_attention}

LIMITS = {
    "com.microsoft.GroupQueryAttention": "quantized or sliding caches; normalized queries and keys; "
    "scores as a result; a past with a total_sequence_length that depends on the data",
}
"""What is not supported, by operator."""
