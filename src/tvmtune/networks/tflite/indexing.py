"""Operators of TFLite files that select or write elements by their indices.

TVM's importer ignores ``batch_dims`` of GATHER, and looks at each element of its result. It transposes
the indices of GATHER_ND and SCATTER_ND, and of several updates of an element keeps the last, where
TFLite adds them. It takes the ids of EMBEDDING_LOOKUP for the table, and makes of SPARSE_TO_DENSE a
call of a function that exists only at compile time.

LiteRT refuses indices out of range. A kernel cannot, so they count from the end of their axis, as
PyTorch's do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tvmtune.networks.relax_operators import Operators, shape, wrapped
from tvmtune.types import product


def gather(converter: Any, op: Any) -> Any:
    """Data (batch..., outer..., n, inner...) at the places (batch..., more...) on the axis of n
    elements: (batch..., outer..., more..., inner...)."""
    from tflite.GatherOptions import GatherOptions

    options = converter._get_builtin_options(op, GatherOptions)
    data, ids = (converter.get_tensor_expr(each) for each in converter.get_input_tensors(op))
    extents, entries = shape(data), shape(ids)
    axis, shared = options.Axis() % len(extents), options.BatchDims()
    shared += len(entries) if shared < 0 else 0
    if not shared:
        return relax.op.take(data, ids, axis)
    ops = Operators(converter.bb)
    before, more, inner = extents[:axis], entries[shared:], extents[axis + 1 :]
    # All rows of n elements become one long axis. The rows of a batch have the same places.
    rows, batch, count = product(before), product(entries[:shared]), extents[axis]
    starts = np.arange(rows).reshape(batch, -1, 1) * count
    places = ops.reshape(wrapped(ops, ids, count), [batch, 1, product(more)])
    places = ops.add(places, relax.const(starts, "int64"))
    taken = ops.take(ops.reshape(data, [rows * count, product(inner)]), places, axis=0)
    return relax.op.reshape(taken, [*before, *more, *inner])


def embedding_lookup(converter: Any, op: Any) -> Any:
    ids, table = (converter.get_tensor_expr(each) for each in converter.get_input_tensors(op))
    return relax.op.take(table, ids, axis=0)


def gather_nd(converter: Any, op: Any) -> Any:
    values, ids = (converter.get_tensor_expr(each) for each in converter.get_input_tensors(op))
    extents = shape(values)[: shape(ids)[-1]]
    return relax.op.gather_nd(values, wrapped(Operators(converter.bb), ids, extents))


def scatter_nd(converter: Any, op: Any) -> Any:
    """Zeros, to which updates are added."""
    ids, updates, _ = converter.get_input_tensors(op)
    (result,) = converter.get_output_tensors(op)
    places, values = converter.get_tensor_expr(ids), converter.get_tensor_expr(updates)
    extents = [int(extent) for extent in converter.get_tensor_shape(result)]
    places = wrapped(Operators(converter.bb), places, extents[: shape(places)[-1]])
    zeros = relax.op.zeros(extents, str(values.ty.dtype))
    return relax.op.scatter_nd(zeros, places, values, "add")


def sparse_to_dense(converter: Any, op: Any) -> Any:
    """Values (n) or one value, at the places (n, axes) of a tensor that has a default elsewhere. Places
    of one axis may be (n), that of one element a scalar."""
    ids, _, *others = converter.get_input_tensors(op)
    (result,) = converter.get_output_tensors(op)
    values, default = (converter.get_tensor_expr(each) for each in others)
    extents = [int(extent) for extent in converter.get_tensor_shape(result)]
    ops = Operators(converter.bb)
    places = ops.reshape(converter.get_tensor_expr(ids), [-1, len(extents)])
    values = ops.broadcast_to(values, [shape(places)[0]])
    dense = ops.broadcast_to(default, extents)
    return relax.op.scatter_nd(dense, wrapped(ops, places, extents), values, "update")
