"""Scaled dot-product attention, whole.

PyTorch decomposes it into products of reshaped operands and, in place of a softmax, ten operators that
look for queries without a key.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import fx
from tvm import relax

from tvmtune.networks.relax_operators import Operators, dtype, shape

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default


def whole_calls(program: torch.export.ExportedProgram) -> set[Any]:
    """The operator, if it is to be converted as it is, not decomposed: if no call drops anything."""
    calls = program.graph.find_nodes(op="call_function", target=_ATTENTION)
    drops = any(_argument(call, 4, "dropout_p", 0.0) for call in calls)
    return set() if drops else {_ATTENTION}


def _convert(node: fx.Node, importer: Any) -> Any:
    """``softmax(q @ k.T * scale + mask) @ v``"""
    op, env = Operators(importer.block_builder), importer.env
    q, k, v = (env[each] for each in node.args[:3])
    mask = _argument(node, 3, "attn_mask", None)
    scale: Any = node.kwargs.get("scale")
    if node.kwargs.get("enable_gqa"):
        k, v = (_repeated(op, each, shape(q)[-3] // shape(each)[-3]) for each in (k, v))
    axes = list(range(len(shape(k))))
    q = op.multiply(q, 1 / math.sqrt(shape(q)[-1]) if scale is None else float(scale))
    scores = op.matmul(q, op.permute_dims(k, [*axes[:-2], axes[-1], axes[-2]]))
    lowest = relax.const(np.array(-math.inf), dtype(scores))
    if mask is not None and dtype(env[mask]) == "bool":
        scores = op.where(env[mask], scores, lowest)
    elif mask is not None:
        scores = op.add(scores, env[mask])
    elif _argument(node, 5, "is_causal", False):
        earlier = np.tril(np.ones(shape(scores)[-2:], bool))
        scores = op.where(relax.const(earlier, "bool"), scores, lowest)
    weights = op.nn.softmax(scores, axis=-1)
    if mask is not None:
        # Of a query without a key, they are zeros. PyTorch's exporter to ONNX does the same.
        zero = relax.const(np.array(0.0), dtype(weights))
        weights = op.where(op.isnan(weights), zero, weights)
    return op.matmul(weights, v)


def _argument(node: Any, place: int, name: str, default: Any) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def _repeated(op: Operators, heads: Any, times: int) -> Any:
    """Each head so many times."""
    return heads if times == 1 else op.repeat(heads, times, axis=len(shape(heads)) - 3)


CONVERTERS = {_ATTENTION.__name__: _convert}
