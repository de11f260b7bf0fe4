"""Bags of embeddings (``torch.nn.EmbeddingBag``): sums, means or maxima. The importer lacks them."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tvmtune.networks.relax_operators import Operators, dtype, shape
from tvmtune.networks.torch.program import arguments

_MODES = ("sum", "mean", "max")


def _embedding_bag(node: Any, importer: Any) -> Any:
    """Bags (b, d) of a table (rows, d) at ``indices`` (n,); bag i has those from ``offsets[i]`` to the
    next one, or to the end. An empty bag is 0."""
    given, op = arguments(node), Operators(importer.block_builder)
    table, indices = (importer.env[given[name]] for name in ("weight", "indices"))
    mode, (count,) = _MODES[given["mode"]], shape(indices)
    bags = node.meta["val"][0].shape[0]
    rows = op.take(table, indices, axis=0, mode="clip")
    kind = dtype(rows)
    weights = given["per_sample_weights"]
    if weights is not None:
        rows = op.multiply(rows, op.reshape(importer.env[weights], [count, 1]))
    counts = None
    if given["padding_idx"] >= 0:
        counts = op.not_equal(indices, relax.const(given["padding_idx"], dtype(indices)))
    size = _equal_sizes(importer.constants.get(given["offsets"].name), bags, count)
    if size is not None:
        rows = op.reshape(rows, [bags, size, shape(table)[1]])
        is_in = None if counts is None else op.reshape(counts, [bags, size])
    else:
        is_in = _members(op, importer.env[given["offsets"]], bags, count)
        is_in = is_in if counts is None else op.logical_and(is_in, counts)
        rows = op.expand_dims(rows, 0)
    if mode == "max":
        return _maxima(op, rows, is_in, [bags, shape(table)[1]])
    if is_in is None:
        return op.mean(rows, axis=1) if mode == "mean" else op.sum(rows, axis=1)
    chosen = op.astype(is_in, kind)
    # A product: (b, 1, n) by (b or 1, n, d).
    sums = op.squeeze(op.matmul(op.expand_dims(chosen, 1), rows), [1])
    if mode == "sum":
        return sums
    return op.divide(sums, op.maximum(op.sum(chosen, axis=1, keepdims=True), 1.0))


def _equal_sizes(offsets: Any, bags: int, count: int) -> int | None:
    """The size of all bags if the offsets are constant and it is one."""
    if offsets is None or not bags or count % bags:
        return None
    begins = np.arange(bags) * (count // bags)
    return count // bags if np.array_equal(offsets.numpy()[:bags], begins) else None


def _members(op: Operators, offsets: Any, bags: int, count: int) -> Any:
    """Which of the indices are in which bag, (b, n)."""
    kind = dtype(offsets)
    if shape(offsets)[0] == bags:
        offsets = op.concat([offsets, relax.const(np.array([count]), kind)], axis=0)
    begins, ends = (
        op.reshape(op.strided_slice(offsets, [0], [first], [first + bags]), [bags, 1])
        for first in (0, 1)
    )
    places = relax.const(np.arange(count)[None], kind)
    return op.logical_and(op.greater_equal(places, begins), op.less(places, ends))


def _maxima(op: Operators, rows: Any, is_in: Any, extents: list[int]) -> Any:
    if is_in is None:
        return op.max(rows, axis=1)
    kind = dtype(rows)
    masked = op.where(op.expand_dims(is_in, 2), rows, relax.const(-np.inf, kind))
    is_empty = op.equal(op.sum(op.astype(is_in, "int32"), axis=1, keepdims=True), _zero("int32"))
    return op.where(op.broadcast_to(is_empty, extents), _zero(kind), op.max(masked, axis=1))


def _zero(kind: str) -> Any:
    return relax.const(0, kind)


CONVERTERS = {
    "_embedding_bag.default": _embedding_bag,
    "_embedding_bag_forward_only.default": _embedding_bag,
}
