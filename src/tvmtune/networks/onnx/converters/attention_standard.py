"""The Attention of the ONNX standard (opset 23 and later).

The importer's converter of this name implements the operator of ONNX Runtime.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from tvmtune.networks.onnx.converters.attention_core import (
    Mask,
    append,
    attend,
    before,
    extend,
    merge_heads,
    positions,
    split_heads,
    up_to,
    window,
)
from tvmtune.networks.onnx.converters.request import Converter, Node
from tvmtune.networks.relax_operators import dtype, shape


def attention(node: Node) -> Any:
    """Inputs are of rank 3 or 4; the result has the rank of the queries."""
    node.refuse({"left_window_size": -1, "right_window_size": -1})
    query, key, value = node.inputs[:3]
    merged = len(shape(query)) == 3
    if merged:
        query_heads, key_heads = (node.attrs.get(f"{side}_num_heads", 0) for side in ("q", "kv"))
        query = split_heads(node, query, query_heads)
        key, value = (split_heads(node, x, key_heads) for x in (key, value))
    past = 0 if node.input(4) is None else shape(node.inputs[4])[2]
    key, value = append(node, node.input(4), key), append(node, node.input(5), value)
    mask = _mask(node, shape(query)[2], shape(key)[2], past)
    attended = attend(
        node,
        query,
        key,
        value,
        mask,
        scale=node.attrs.get("scale"),
        softcap=node.attrs.get("softcap", 0.0),
    )
    output = merge_heads(node, attended.output) if merged else attended.output
    if node.outputs < 4:
        return node.results(output, key, value)
    mode = node.attrs.get("qk_matmul_output_mode", 0)
    if mode not in (0, 3):
        raise ValueError(
            f"its attribute qk_matmul_output_mode={mode} is not supported; 0 and 3 are"
        )
    scores = attended.probabilities if mode == 3 else attended.raw_scores
    return node.results(output, key, value, scores)


def _mask(node: Node, length: int, keys: int, past: int) -> Mask:
    mask, tensor, valid = Mask(), node.input(3), node.input(6)
    if tensor is not None:
        (mask.allowed if dtype(tensor) == "bool" else mask.biases).append(
            extend(node, tensor, keys)
        )
    if valid is not None:
        mask.allowed.append(before(node, valid, keys))
    if node.attrs.get("is_causal", 0):
        if valid is None or past:
            mask.allowed.append(window(length, keys, offset=past))
        else:  # the queries are the last of the valid tokens
            first = node.op.subtract(valid, relax.const(length, dtype(valid)))
            mask.allowed.append(up_to(node, positions(node, first, length), keys))
    return mask


CONVERTERS: dict[str, Converter] = {"Attention": attention}

LIMITS = {
    "Attention": "windows of opset 25; scores of modes 1 and 2 as a result",
}
"""What is not supported, by operator."""
