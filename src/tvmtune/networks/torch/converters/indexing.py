"""Scatters and assignments to indices.

The importer lacks scatters with reductions, and ignores that an index may be smaller than the tensor.
Its ``index_put`` supports only values of the indices' shape and an index for each axis, and its kernel
adds in several threads at once to the same element.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from tvm import relax

from tvmtune.networks.scatters import scatter
from tvmtune.networks.torch.converters.arithmetic import dtype_name, value

_REDUCTIONS = {
    "add": "add",
    "amax": "max",
    "amin": "min",
    "mean": "add",
    "multiply": "mul",
    "prod": "mul",
    "sum": "add",
}


def _scatter(reduction: str | None = None) -> Any:
    """``scatter(x, dim, index, src)`` with this reduction, or that of its keyword ``reduce``."""

    def convert(node: Any, importer: Any) -> Any:
        name = reduction or node.kwargs.get("reduce")
        updates = _updates(node, importer)
        kind = _REDUCTIONS[name] if name else "update"
        return _scattered(node, importer, importer.env[node.args[0]], updates, kind)

    return convert


def _scatter_reduce(node: Any, importer: Any) -> Any:
    name = node.args[4]
    dtype = node.meta["val"].dtype
    if name == "mean" and not dtype.is_floating_point:
        raise NotImplementedError("scatter_reduce computes no mean of integers")
    emit = importer.block_builder.emit
    data, updates = importer.env[node.args[0]], _updates(node, importer)
    includes_self = node.kwargs.get("include_self", True)
    counts = None
    if name == "mean" or not includes_self:
        like, one = relax.op.zeros_like(data), relax.op.ones_like(updates)
        counts = _scattered(node, importer, emit(like), emit(one), "add")
    if not includes_self:
        touched = emit(relax.op.greater(counts, _number(0, dtype)))
        data = emit(relax.op.where(touched, _number(_neutral(name, dtype), dtype), data))
    result = _scattered(node, importer, data, updates, _REDUCTIONS[name])
    if name != "mean":
        return result
    if includes_self:
        counts = emit(relax.op.add(counts, _number(1, dtype)))
    counts = emit(relax.op.maximum(counts, _number(1, dtype)))
    return emit(relax.op.divide(result, counts))


def _updates(node: Any, importer: Any) -> Any:
    """The values to scatter, of the shape of the index and the dtype of the tensor."""
    source, dtype = node.args[3], node.meta["val"].dtype
    extents = list(node.args[2].meta["val"].shape)
    emit = importer.block_builder.emit
    updates = value(node, importer, source, dtype)
    if not isinstance(source, torch.fx.Node):
        return emit(relax.op.broadcast_to(updates, extents))
    if list(source.meta["val"].shape) == extents:
        return updates
    axes = list(range(len(extents)))
    return emit(relax.op.strided_slice(updates, axes, [0] * len(axes), extents))


def _scattered(node: Any, importer: Any, data: Any, updates: Any, reduction: str) -> Any:
    builder = importer.block_builder
    index = importer.env[node.args[2]]
    return builder.emit(scatter(builder, data, index, updates, node.args[1], reduction))


def _number(number: float, dtype: torch.dtype) -> Any:
    return relax.const(np.array(number, dtype_name(dtype)))


def _neutral(reduction: str, dtype: torch.dtype) -> float:
    """What leaves any value as it is."""
    if reduction in ("amax", "amin"):
        is_float = dtype.is_floating_point
        if reduction == "amax":
            return -math.inf if is_float else torch.iinfo(dtype).min
        return math.inf if is_float else torch.iinfo(dtype).max
    return 1 if reduction == "prod" else 0


def _index_put(node: Any, importer: Any) -> Any:
    """As rows of the axes without an index, which go to the end for it."""
    indices, values = node.args[1:3]
    accumulate = node.args[3] if len(node.args) > 3 else node.kwargs.get("accumulate", False)
    dtype = node.meta["val"].dtype
    builder = importer.block_builder
    emit = builder.emit
    data = importer.env[node.args[0]]
    extents = list(node.meta["val"].shape)
    values = value(node, importer, values, dtype)
    if any(index is not None and index.meta["val"].dtype is torch.bool for index in indices):
        return _put_where(node, importer, data, values, accumulate)
    indexed = [axis for axis, index in enumerate(indices) if index is not None]
    others = [axis for axis in range(len(extents)) if axis not in indexed]
    places = torch.broadcast_shapes(*(indices[axis].meta["val"].shape for axis in indexed))
    # The axes of the indices take the place of adjacent indexed ones, and else come first.
    is_adjacent = indexed == list(range(indexed[0], indexed[-1] + 1))
    before = [extents[axis] for axis in others if is_adjacent and axis < indexed[0]]
    after = [extents[axis] for axis in others][len(before) :]
    values = emit(relax.op.broadcast_to(values, [*before, *places, *after]))
    first, count = len(before), len(places)
    moved = [
        *range(first, first + count),
        *range(first),
        *range(first + count, count + len(others)),
    ]
    values = _permuted(builder, values, moved)
    order = [*indexed, *others]
    data = _permuted(builder, data, order)
    coordinates = []
    for axis in indexed:
        index = emit(relax.op.astype(importer.env[indices[axis]], "int64"))
        from_end = emit(relax.op.add(index, relax.const(extents[axis], "int64")))
        negative = emit(relax.op.less(index, relax.const(0, "int64")))
        index = emit(relax.op.where(negative, from_end, index))
        coordinates.append(emit(relax.op.broadcast_to(index, list(places))))
    stacked = emit(relax.op.stack(coordinates, axis=-1))
    reduction = "add" if accumulate else "update"
    result = emit(relax.op.scatter_nd(data, stacked, values, reduction))
    return _permuted(builder, result, [order.index(axis) for axis in range(len(order))])


def _put_where(node: Any, importer: Any, data: Any, values: Any, accumulate: bool) -> Any:
    """An assignment of one value by a mask of the first axes."""
    indices, extents = node.args[1], list(node.meta["val"].shape)
    mask = indices[0]
    elements = node.args[2].meta["val"].numel() if isinstance(node.args[2], torch.fx.Node) else 1
    if len(indices) > 1 or elements != 1:
        raise NotImplementedError("index_put by a mask supports one mask and one value")
    emit = importer.block_builder.emit
    rank = mask.meta["val"].dim()
    shape = [*extents[:rank], *[1] * (len(extents) - rank)]
    chosen = emit(relax.op.reshape(importer.env[mask], shape))
    values = emit(relax.op.reshape(values, [1] * len(extents)))
    new = emit(relax.op.add(data, values)) if accumulate else values
    return emit(relax.op.where(chosen, new, data))


def _permuted(builder: Any, tensor: Any, order: list[int]) -> Any:
    if order == list(range(len(order))):
        return tensor
    return builder.emit(relax.op.permute_dims(tensor, order))


CONVERTERS = {
    "index_put.default": _index_put,
    "index_put_.default": _index_put,
    "scatter.reduce": _scatter(),
    "scatter.src": _scatter(),
    "scatter.value": _scatter(),
    "scatter.value_reduce": _scatter(),
    "scatter_add.default": _scatter("add"),
    "scatter_reduce.two": _scatter_reduce,
}
