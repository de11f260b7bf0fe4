"""Scaled dot-product attention, which all attention operators have in common.

Queries, keys and values are of the shape (batch, heads, length, head size). Masks are either
``biases``, which are added to the scores, or ``allowed``, booleans that say which keys a query sees.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from tvm import relax

from tvmtune.arrays import numpy_dtype
from tvmtune.networks.onnx.converters.request import Node, constant
from tvmtune.networks.relax_operators import dtype, shape


@dataclass
class Mask:
    """What restricts the keys that a query sees, of shapes that broadcast to the scores."""

    biases: list[Any] = field(default_factory=list)
    allowed: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Attended:
    """``output`` is (batch, heads, length, head size); the others are (batch, heads, length, keys)."""

    output: Any
    raw_scores: Any
    probabilities: Any


def split_heads(node: Node, x: Any, heads: int) -> Any:
    """(batch, length, heads * size) to (batch, heads, length, size)."""
    batch, length, width = shape(x)
    if not heads or width % heads:
        raise ValueError(f"{width} channels cannot be split into {heads} heads")
    x = node.op.reshape(x, (batch, length, heads, width // heads))
    return node.op.permute_dims(x, (0, 2, 1, 3))


def merge_heads(node: Node, x: Any) -> Any:
    """The inverse of :func:`split_heads`."""
    batch, heads, length, size = shape(x)
    return node.op.reshape(node.op.permute_dims(x, (0, 2, 1, 3)), (batch, length, heads * size))


def append(node: Node, past: Any, new: Any) -> Any:
    """Keys or values of the past, if any, and then the new ones."""
    if past is None or 0 in shape(past):
        return new
    return node.op.concat([past, new], axis=2)


def attend(
    node: Node,
    query: Any,
    key: Any,
    value: Any,
    mask: Mask,
    *,
    scale: float | None = None,
    softcap: float = 0.0,
    sink: Any = None,
) -> Attended:
    """Attention of each query head to its key head; key heads are shared by consecutive query heads.

    ``scale`` is by default one over the root of the head size. ``softcap`` bounds the scores smoothly.
    ``sink`` (heads) is the score of one more key, whose value is zero. A query that may see no key gets
    zeros.
    """
    op = node.op
    batch, heads, length, size = shape(query)
    groups, keys = shape(key)[1:3]
    if heads % groups or shape(value)[:3] != [batch, groups, keys]:
        raise ValueError(f"{heads} query heads do not fit keys of the shape {shape(key)}")
    # Queries that share a head of keys become rows of one product: keys are not copied.
    rows = op.reshape(query, (batch, groups, heads // groups * length, size))
    scores = op.matmul(rows, op.permute_dims(key, (0, 1, 3, 2)))
    scores = op.multiply(scores, float(1 / math.sqrt(size) if scale is None else scale))
    # The heads of a single query are rows already, and their scores need no other shape.
    is_step = length == 1 and sink is None
    if not is_step:
        scores = op.reshape(scores, (batch, heads, length, keys))
    raw_scores = scores
    if softcap:
        scores = op.multiply(op.tanh(op.divide(scores, float(softcap))), float(softcap))
    biases, seen = (
        [_by_groups(node, each, heads, groups) if is_step else each for each in masks]
        for masks in (mask.biases, mask.allowed)
    )
    for bias in biases:
        scores = op.add(scores, bias)
    allowed = _all(node, seen)
    if allowed is not None:
        hidden = relax.const(lowest(dtype(scores)), dtype(scores))
        scores = op.where(allowed, scores, hidden)
    if sink is not None:
        column = op.broadcast_to(op.reshape(sink, (1, heads, 1, 1)), (batch, heads, length, 1))
        wide = op.nn.softmax(op.concat([scores, column], axis=3), axis=-1)
        probabilities = op.strided_slice(wide, [3], [0], [keys])
    else:
        probabilities = op.nn.softmax(scores, axis=-1)
    if _may_be_empty(allowed):
        zero = relax.const(0.0, dtype(scores))
        probabilities = op.where(allowed, probabilities, zero)
    rows = probabilities
    if not is_step:
        rows = op.reshape(rows, (batch, groups, heads // groups * length, keys))
    output = op.reshape(op.matmul(rows, value), (batch, heads, length, shape(value)[3]))
    if is_step:
        whole = (batch, heads, length, keys)
        raw_scores, probabilities = (op.reshape(x, whole) for x in (raw_scores, probabilities))
    return Attended(output, raw_scores, probabilities)


def _by_groups(node: Node, mask: Any, heads: int, groups: int) -> Any:
    """A mask for (batch, heads, 1, keys) as one for (batch, groups, heads / groups, keys)."""
    extents = shape(mask)
    if len(extents) < 3 or extents[-3] == 1:
        return mask
    return node.op.reshape(mask, (*extents[:-3], groups, heads // groups, extents[-1]))


def lowest(kind: str) -> float:
    """The lowest finite value of a dtype: an infinity becomes NaN where a mask hides all keys."""
    return float(ml_dtypes.finfo(numpy_dtype(kind)).min)


def _all(node: Node, masks: Sequence[Any]) -> Any:
    """The conjunction of masks, None without any; constants are combined right here."""
    arrays = [array for mask in masks if (array := constant(mask)) is not None]
    rest = [mask for mask in masks if constant(mask) is None]
    if arrays:
        combined = arrays[0]
        for array in arrays[1:]:
            combined = combined & array
        if not rest or not combined.all():
            rest.append(relax.const(combined, "bool"))
    result = None
    for mask in rest:
        result = mask if result is None else node.op.logical_and(result, mask)
    return result


def _may_be_empty(allowed: Any) -> bool:
    """Whether a query may see no key at all."""
    if allowed is None:
        return False
    value = constant(allowed)
    return value is None or not value.any(axis=-1).all()


def window(
    length: int, keys: int, *, offset: int = 0, causal: bool = True, left: int | None = None
) -> Any:
    """Query i sees key j if ``j <= i + offset`` (causal) and ``j > i + offset - left``."""
    query, key = np.arange(length)[:, None] + offset, np.arange(keys)[None]
    seen = np.ones((length, keys), "bool")
    if causal:
        seen &= key <= query
    if left is not None:
        seen &= key > query - left
    return relax.const(seen[None, None], "bool")


def positions(node: Node, starts: Any, length: int) -> Any:
    """Positions (batch, 1, length, 1) of queries, the first of which are at ``starts`` (batch)."""
    kind = dtype(starts)
    steps = relax.const(np.arange(length).reshape(1, 1, length, 1).astype(kind), kind)
    return node.op.add(node.op.reshape(starts, (shape(starts)[0], 1, 1, 1)), steps)


def up_to(node: Node, last: Any, keys: int) -> Any:
    """Keys up to and including positions ``last``, whose final extent is 1."""
    kind = dtype(last)
    index = relax.const(np.arange(keys).reshape(1, 1, 1, keys).astype(kind), kind)
    return node.op.less_equal(index, last)


def extend(node: Node, mask: Any, keys: int) -> Any:
    """A mask that is shorter than the keys hides the rest of them."""
    known = shape(mask)[-1]
    if known in (1, keys):
        return mask
    hidden = False if dtype(mask) == "bool" else lowest(dtype(mask))
    rest = relax.const(np.full([*shape(mask)[:-1], keys - known], hidden), dtype(mask))
    return node.op.concat([mask, rest], axis=-1)


def before(node: Node, ends: Any, keys: int) -> Any:
    """Keys before the ``ends`` (batch) of the sequences."""
    one = relax.const(1, dtype(ends))
    last = node.op.reshape(node.op.subtract(ends, one), (shape(ends)[0], 1, 1, 1))
    return up_to(node, last, keys)
