"""The attention operators of ONNX Runtime, which its optimizer makes.

The importer's Attention refuses most attributes and has none of the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tvmtune.networks.onnx.converters.attention_core import (
    Mask,
    append,
    attend,
    before,
    lowest,
    merge_heads,
    split_heads,
    window,
)
from tvmtune.networks.onnx.converters.request import Converter, Node, constant
from tvmtune.networks.relax_operators import dtype, shape

_CAUSAL = "unidirectional"


def attention(node: Node) -> Any:
    """Projects its input to queries, keys and values with one matrix; past and present are stacked."""
    node.refuse({"do_rotary": 0, "past_present_share_buffer": 0})
    if node.input(6) is not None:
        raise ValueError("a buffer shared by its past and present is not supported")
    x, weights, bias, past = *node.inputs[:2], node.input(2), node.input(4)
    widths = node.attrs.get("qkv_hidden_sizes") or [shape(weights)[1] // 3] * 3
    heads = node.attrs["num_heads"]
    query, key, value = (
        split_heads(node, part, heads) for part in _projections(node, x, weights, bias, widths)
    )
    old = 0
    if past is not None and 0 not in shape(past):
        old = shape(past)[3]
        old_key, old_value = (
            node.op.squeeze(node.op.strided_slice(past, [0], [i], [i + 1]), [0]) for i in (0, 1)
        )
        key, value = append(node, old_key, key), append(node, old_value, value)
    mask = _mask(node, node.input(3), query, key, old)
    if node.input(5) is not None:
        mask.biases.append(node.inputs[5])
    attended = attend(node, query, key, value, mask, scale=_scale(node))
    output = merge_heads(node, attended.output)
    if node.outputs == 1:
        return output
    return node.results(output, node.op.stack([key, value], axis=0))


def _projections(node: Node, x: Any, weights: Any, bias: Any, widths: list[int]) -> list[Any]:
    """One product for each of queries, keys and values: joint results would have to be copied apart."""
    ends = np.cumsum(widths).tolist()
    array, offsets = constant(weights), constant(bias) if bias is not None else None
    results = []
    for start, end in zip([0, *ends], ends, strict=False):
        if array is not None:
            part = relax.const(np.ascontiguousarray(array[:, start:end]), dtype(weights))
        else:
            part = node.op.strided_slice(weights, [1], [start], [end])
        result = node.op.matmul(x, part)
        if offsets is not None:
            result = node.op.add(result, relax.const(offsets[start:end], dtype(bias)))
        elif bias is not None:
            result = node.op.add(result, node.op.strided_slice(bias, [0], [start], [end]))
        results.append(result)
    return results


def multi_head_attention(node: Node) -> Any:
    """Takes projected queries, keys and values; keys and values of rank 4 are already split."""
    if node.input(8) is not None or node.input(9) is not None:
        raise ValueError("a buffer shared by its past and present is not supported")
    query, key, value = node.inputs[0], node.input(1), node.input(2)
    if key is None or value is None or len(shape(query)) != 3:
        raise ValueError("packed queries, keys and values are not supported")
    heads, bias = node.attrs["num_heads"], node.input(3)
    if bias is not None:
        query, key, value = _with_bias(node, bias, query, key, value)
    query, key, value = (
        x if len(shape(x)) == 4 else split_heads(node, x, heads) for x in (query, key, value)
    )
    old = 0 if node.input(6) is None else shape(node.inputs[6])[2]
    key, value = append(node, node.input(6), key), append(node, node.input(7), value)
    mask = _mask(node, node.input(4), query, key, old)
    if node.input(5) is not None:
        mask.biases.append(node.inputs[5])
    attended = attend(node, query, key, value, mask, scale=_scale(node))
    return node.results(merge_heads(node, attended.output), key, value, attended.probabilities)


def _with_bias(node: Node, bias: Any, *tensors: Any) -> list[Any]:
    """Adds the bias of the projections, one vector for all, to tensors that are not yet split."""
    results, start = [], 0
    for x in tensors:
        if len(shape(x)) == 4:
            results.append(x)
            continue
        end = start + shape(x)[2]
        part = node.op.strided_slice(bias, [0], [start], [end])
        results.append(node.op.add(x, part))
        start = end
    return results


def _scale(node: Node) -> float | None:
    return node.attrs.get("scale") or None  # 0 stands for the default


def _mask(node: Node, tensor: Any, query: Any, key: Any, past: int) -> Mask:
    """The causal mask, and the mask of padding in each of its forms.

    A hidden key keeps a score, lowered by ``mask_filter_value``.
    """
    mask = Mask()
    batch, _, length, _ = shape(query)
    keys = shape(key)[2]
    if node.attrs.get(_CAUSAL, 0):
        mask.allowed.append(window(length, keys, offset=past))
    if tensor is None:
        return mask
    extents = shape(tensor)
    if extents == [batch]:
        seen = before(node, tensor, keys)
    elif extents == [2 * batch]:  # ends, then starts
        ends, starts = (
            node.op.strided_slice(tensor, [0], [i * batch], [(i + 1) * batch]) for i in (0, 1)
        )
        too_early = node.op.logical_not(before(node, ends, keys))
        early = before(node, starts, keys)
        seen = node.op.logical_not(node.op.logical_or(too_early, early))
    elif extents == [batch, keys]:
        seen = _positive(node, node.op.reshape(tensor, (batch, 1, 1, keys)))
    elif extents == [batch, length, keys]:
        seen = _positive(node, node.op.reshape(tensor, (batch, 1, length, keys)))
    else:
        raise ValueError(f"a mask of the shape {extents} is not supported")
    kind = dtype(query)
    filtered = max(float(node.attrs.get("mask_filter_value", -10000.0)), lowest(kind))
    lowered = relax.const(filtered, kind)
    mask.biases.append(node.op.where(seen, relax.const(0.0, kind), lowered))
    return mask


def _positive(node: Node, mask: Any) -> Any:
    if dtype(mask) == "bool":
        return mask
    return node.op.greater(mask, relax.const(0, dtype(mask)))


CONVERTERS: dict[str, Converter] = {
    "com.microsoft.Attention": attention,
    "com.microsoft.MultiHeadAttention": multi_head_attention,
}

_SHARED = "buffers shared by past and present; masks of cumulative lengths or of rank 4"

LIMITS = {
    "com.microsoft.Attention": f"rotary embeddings; {_SHARED}",
    "com.microsoft.MultiHeadAttention": f"packed queries, keys and values; {_SHARED}",
}
"""What is not supported, by operator."""
