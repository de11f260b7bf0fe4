"""Scatters in Relax, for every importer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvmtune.networks.relax_operators import shape


def scatter(
    builder: Any,
    data: Any,
    index: Any,
    updates: Any,
    axis: int,
    reduction: str = "update",
    *,
    checked: Callable[[Any], Any] = lambda index: index,
) -> Any:
    """``data`` with ``updates`` applied at the places that ``index`` names on ``axis``, as ONNX's
    ``ScatterElements`` and PyTorch's ``scatter``: ``index`` and ``updates`` have the same shape, which
    may be smaller than that of ``data``.

    ``reduction`` is update, add, mul, min or max. ``checked`` makes indices valid.
    """
    extents, entries = shape(data), shape(index)
    if not extents:  # one element, in PyTorch
        data, index, updates = (
            builder.normalize(relax.op.reshape(each, [1])) for each in (data, index, updates)
        )
        whole = scatter(builder, data, index, updates, 0, reduction, checked=checked)
        return relax.op.reshape(builder.normalize(whole), [])
    if 0 in (*extents, *entries):
        return data
    axis %= len(extents)
    rows = _row_index(builder, index) if axis == 0 and entries[1:] == extents[1:] else None
    if rows is not None:
        # Graph networks add whole rows, by an index that is repeated for each column.
        return relax.op.scatter_nd(data, checked(rows), updates, reduction)
    index = checked(index)
    if all(a == b for n, (a, b) in enumerate(zip(extents, entries, strict=True)) if n != axis):
        return relax.op.scatter_elements(data, index, updates, axis=axis, reduction=reduction)
    # TVM's kernels for GPUs need indices of the extents of the data.
    kind = str(index.ty.dtype)
    grids = np.indices(entries, dtype=kind)
    places = [index if n == axis else relax.const(grid, kind) for n, grid in enumerate(grids)]
    stacked = builder.normalize(relax.op.stack(places, axis=-1))
    return relax.op.scatter_nd(data, stacked, updates, reduction)


def _row_index(builder: Any, index: Any) -> Any:
    """The index of each row, of shape (rows, 1), if all elements of a row have the same; else None."""
    entries = shape(index)
    if isinstance(index, tvm.ir.GenericConst):
        value = index.value.numpy().reshape(entries[0], -1)
        same = bool((value == value[:, :1]).all())
        return relax.const(value[:, :1].copy(), str(value.dtype)) if same else None
    call = builder.lookup_binding(index) if isinstance(index, relax.Var) else index
    if not isinstance(call, tvm.ir.Call) or call.op != tvm.ir.Op.get("relax.broadcast_to"):
        return None
    source = call.args[0]
    extents = shape(source)
    if len(extents) < len(entries) or extents[0] != entries[0] or any(n > 1 for n in extents[1:]):
        return None
    return builder.normalize(relax.op.reshape(source, [entries[0], 1]))
