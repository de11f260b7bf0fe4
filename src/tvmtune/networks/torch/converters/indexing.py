"""Lookups by several indices, scatters and assignments to indices and slices.

The importer lacks scatters with reductions, and ignores that an index may be smaller than the tensor.
Its ``index_put`` supports only values of the indices' shape and an index for each axis, and its kernel
adds in several threads at once to the same element. Assignments to slices are scatters to the importer,
which no schedule computes in threads or vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from tvm import relax

from tvmtune.networks.relax_operators import Operators, shape, wrapped
from tvmtune.networks.scatters import scatter
from tvmtune.networks.torch.converters.arithmetic import dtype_name, value
from tvmtune.networks.torch.program import arguments

WHOLE = {torch.ops.aten.select_scatter.default}
"""Operators that are to be converted as they are. PyTorch replaces them by a choice of each element."""

_REDUCTIONS = {
    "add": "add",
    "amax": "max",
    "amin": "min",
    "mean": "add",
    "multiply": "mul",
    "prod": "mul",
    "sum": "add",
}
_OF_TRUTH_VALUES = {"add": "max", "max": "max", "min": "min", "mul": "min"}
"""Reductions of 0 and 1 that are those of truth values."""


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
        raise NotImplementedError("scatter_reduce does not support the mean of integers")
    emit = importer.block_builder.emit
    data, updates = importer.env[node.args[0]], _updates(node, importer)
    includes_self = node.kwargs.get("include_self", True)
    counts = None
    if name == "mean" or not includes_self:
        # Not in the tensor's dtype, which may be too small for them.
        like, one = (
            relax.op.full(shape(x), _count(n), "int32") for n, x in enumerate((data, updates))
        )
        counts = _scattered(node, importer, emit(like), emit(one), "add")
    if not includes_self:
        touched = emit(relax.op.greater(counts, _count(0)))
        data = emit(relax.op.where(touched, _number(_neutral(name, dtype), dtype), data))
    result = _scattered(node, importer, data, updates, _REDUCTIONS[name])
    if name != "mean":
        return result
    if includes_self:
        counts = emit(relax.op.add(counts, _count(1)))
    counts = emit(relax.op.maximum(counts, _count(1)))
    return emit(relax.op.divide(result, emit(relax.op.astype(counts, dtype_name(dtype)))))


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

    def scattered(data: Any, updates: Any, reduction: str) -> Any:
        return builder.emit(scatter(builder, data, index, updates, node.args[1], reduction))

    return _reduced(builder.emit, data, updates, reduction, scattered)


def _reduced(
    emit: Any, data: Any, updates: Any, reduction: str, compute: Callable[[Any, Any, str], Any]
) -> Any:
    """What ``compute(data, updates, reduction)`` returns. Reductions of truth values, which have no
    kernels, are those of 0 and 1 that give the same; sums in half precision are added in float32."""
    dtype = str(data.ty.dtype)
    if dtype == "bool" and reduction in _OF_TRUTH_VALUES:
        reduction, computed = _OF_TRUTH_VALUES[reduction], "int8"
    elif dtype in ("float16", "bfloat16") and reduction in ("add", "mul"):
        computed = "float32"
    else:
        return compute(data, updates, reduction)
    data, updates = (emit(relax.op.astype(each, computed)) for each in (data, updates))
    return emit(relax.op.astype(compute(data, updates, reduction), dtype))


def _number(number: float, dtype: torch.dtype) -> Any:
    name = dtype_name(dtype)
    return relax.const(np.array(number, name), name)


def _count(number: int) -> Any:
    return relax.const(number, "int32")


def _neutral(reduction: str, dtype: torch.dtype) -> float:
    """What leaves any value as it is."""
    if dtype is torch.bool or reduction not in ("amax", "amin"):
        return 1 if reduction in ("prod", "amin") else 0
    if dtype.is_floating_point:
        return -math.inf if reduction == "amax" else math.inf
    limits = torch.iinfo(dtype)
    return limits.min if reduction == "amax" else limits.max


def _index(node: Any, importer: Any) -> Any:
    """As rows of one axis, in which the indexed ones are joined. Beside a ``:``, the importer applies
    several indices one after another, and it reads out of bounds at negative ones."""
    indexed = [(axis, index) for axis, index in enumerate(node.args[1]) if index is not None]
    op, data = Operators(importer.block_builder), importer.env[node.args[0]]
    axes = [axis for axis, _ in indexed]
    first, count = axes[0], len(axes)
    if count == 1:
        return op.take(data, importer.env[indexed[0][1]], axis=first)
    is_adjacent = _are_adjacent(axes)
    if is_adjacent and _is_grid([index.meta["val"].shape for _, index in indexed]):
        for axis, index in reversed(indexed):
            data = op.take(data, op.reshape(importer.env[index], (-1,)), axis=axis)
        return data
    if not is_adjacent:
        others = [axis for axis in range(len(shape(data))) if axis not in axes]
        data, first = op.permute_dims(data, [*axes, *others]), 0
    extents, place = shape(data), None
    for extent, (_, index) in zip(extents[first:], indexed, strict=False):
        row = wrapped(op, importer.env[index], extent)
        if place is not None:
            row = op.add(op.multiply(place, relax.const(extent, "int64")), row)
        place = row
    ends = extents[:first], extents[first + count :]
    joined = op.reshape(data, [*ends[0], math.prod(extents[first : first + count]), *ends[1]])
    return op.take(joined, place, axis=first)


def _is_grid(shapes: Sequence[Sequence[int]]) -> bool:
    """Whether each index varies along an axis of its own, in their order: rows and then columns."""
    rank = len(shapes)
    return all(
        len(extents) <= rank
        and all(
            extent == 1 for axis, extent in enumerate(extents, rank - len(extents)) if axis != own
        )
        for own, extents in enumerate(shapes)
    )


def _are_adjacent(axes: Sequence[int]) -> bool:
    """Whether the axes of the indices take the place of the indexed ones; else they come first."""
    return list(axes) == list(range(axes[0], axes[-1] + 1))


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
    kinds = {index.meta["val"].dtype for index in indices if index is not None}
    if torch.uint8 in kinds:
        raise NotImplementedError("index_put by a mask supports only bool, not uint8")
    if torch.bool in kinds:
        return _put_where(node, importer, data, values, accumulate)
    indexed = [axis for axis, index in enumerate(indices) if index is not None]
    if len(indexed) == 1 and indices[indexed[0]].meta["val"].dim() == 1:
        return _put_along(node, importer, data, values, indexed[0], accumulate)
    others = [axis for axis in range(len(extents)) if axis not in indexed]
    places = torch.broadcast_shapes(*(indices[axis].meta["val"].shape for axis in indexed))
    if 0 in (*places, *extents):
        return data
    is_adjacent = _are_adjacent(indexed)
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
        index = _from_start(builder, importer.env[indices[axis]], extents[axis])
        coordinates.append(emit(relax.op.broadcast_to(index, list(places))))
    stacked = emit(relax.op.stack(coordinates, axis=-1))
    result = _reduced(
        emit,
        data,
        values,
        "add" if accumulate else "update",
        lambda data, values, reduction: emit(relax.op.scatter_nd(data, stacked, values, reduction)),
    )
    return _permuted(builder, result, [order.index(axis) for axis in range(len(order))])


def _put_along(
    node: Any, importer: Any, data: Any, values: Any, axis: int, accumulate: bool
) -> Any:
    """An assignment by a vector of indices of one axis, as to the cache of a language model."""
    builder, index = importer.block_builder, importer.env[node.args[1][axis]]
    extents = [*shape(data)]
    (count,) = shape(index)
    if 0 in (count, *extents):
        return data
    index = _from_start(builder, index, extents[axis])
    entries = [*extents[:axis], count, *extents[axis + 1 :]]
    column = [count if n == axis else 1 for n in range(len(extents))]
    index = builder.emit(relax.op.reshape(index, column))
    index = builder.emit(relax.op.broadcast_to(index, entries))
    values = builder.emit(relax.op.broadcast_to(values, entries))
    return _reduced(
        builder.emit,
        data,
        values,
        "add" if accumulate else "update",
        lambda data, values, kind: builder.emit(scatter(builder, data, index, values, axis, kind)),
    )


def _from_start(builder: Any, index: Any, extent: int) -> Any:
    """Indices that count from the end if they are negative, as ones from the start."""
    index = builder.emit(relax.op.astype(index, "int64"))
    from_end = builder.emit(relax.op.add(index, relax.const(extent, "int64")))
    negative = builder.emit(relax.op.less(index, relax.const(0, "int64")))
    return builder.emit(relax.op.where(negative, from_end, index))


def _put_where(node: Any, importer: Any, data: Any, values: Any, accumulate: bool) -> Any:
    """An assignment by a mask of some axes, of values that are the same for all that it selects."""
    extents = list(node.meta["val"].shape)
    chosen = [(axis, index) for axis, index in enumerate(node.args[1]) if index is not None]
    ((first, mask), *more) = chosen
    if more:
        raise NotImplementedError("index_put by a mask and by other indices is not supported")
    end = first + mask.meta["val"].dim()
    given = shape(values)
    after = len(extents) - end
    before, row = given[: max(len(given) - after - 1, 0)], given[max(len(given) - after, 0) :]
    if len(given) > after and given[len(before)] != 1:
        raise NotImplementedError(
            "index_put by a mask does not support a separate value for each selected element"
        )
    emit = importer.block_builder.emit
    masked = [*[1] * first, *extents[first:end], *[1] * after]
    is_chosen = emit(relax.op.reshape(importer.env[mask], masked))
    values = emit(relax.op.reshape(values, [*before, *[1] * (end - first), *row]))
    new = values
    if accumulate:
        new = _reduced(
            emit,
            data,
            values,
            "add",
            lambda data, values, kind: emit(
                (relax.op.add if kind == "add" else relax.op.maximum)(data, values)
            ),
        )
    return emit(relax.op.where(is_chosen, new, data))


def _slice_scatter(node: Any, importer: Any) -> Any:
    given = arguments(node)
    return _assigned(node, importer, slice(given["start"], given["end"], given["step"]))


def _select_scatter(node: Any, importer: Any) -> Any:
    place = arguments(node)["index"]
    return _assigned(node, importer, slice(place, place + 1 or None))


def _assigned(node: Any, importer: Any, places: slice) -> Any:
    """The first argument with the second in these places along the axis ``dim``."""
    op, dtype = Operators(importer.block_builder), node.meta["val"].dtype
    old, new = (value(node, importer, argument, dtype) for argument in node.args[:2])
    extents = shape(old)
    axis = arguments(node)["dim"] % len(extents)
    taken = range(extents[axis])[places]
    if not taken:
        return old
    new = op.reshape(new, [*extents[:axis], len(taken), *extents[axis + 1 :]])
    if taken.step == 1:
        ends = ((0, taken.start), (taken.stop, extents[axis]))
        before, after = (
            [op.strided_slice(old, [axis], [begin], [end])] if end > begin else []
            for begin, end in ends
        )
        parts = [*before, new, *after]
        return op.concat(parts, axis=axis) if len(parts) > 1 else new
    sources = np.zeros(extents[axis], "int64")
    sources[places] = np.arange(len(taken))
    is_new = np.isin(np.arange(extents[axis]), taken).reshape(
        [-1] + [1] * (len(extents) - axis - 1)
    )
    spread = op.take(new, relax.const(sources, "int64"), axis=axis, mode="clip")
    return op.where(relax.const(is_new), spread, old)


def _permuted(builder: Any, tensor: Any, order: list[int]) -> Any:
    if order == list(range(len(order))):
        return tensor
    return builder.emit(relax.op.permute_dims(tensor, order))


CONVERTERS = {
    "index.Tensor": _index,
    "index_put.default": _index_put,
    "index_put_.default": _index_put,
    "scatter.reduce": _scatter(),
    "scatter.src": _scatter(),
    "scatter.value": _scatter(),
    "scatter.value_reduce": _scatter(),
    "scatter_add.default": _scatter("add"),
    "scatter_reduce.two": _scatter_reduce,
    "select_scatter.default": _select_scatter,
    "slice_scatter.default": _slice_scatter,
}
