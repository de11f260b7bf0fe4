"""Legalization of scatters for CPUs: each thread writes its own rows of the output.

TVM's kernels start all threads for every row of the updates (``scatter_nd``), take the axes of smaller
indices for the data's (``scatter_elements``), and write out of bounds for an index out of range.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from tvmtune.passes.cpu_threads import cpu_threads
from tvmtune.types import product

NAME = "scatter"
"""The block of such a kernel. The loop in it, over threads, copies data and then applies updates."""

Row = Callable[[Sequence[Any], Any], Any]
"""From a position in the loops over the updates, and the indices, the row of the output; -1 if an index
is out of range."""


def scatter_nd(data: Any, indices: Any, updates: Any, reduction: str) -> Any:
    """``data`` with ``updates`` applied at the positions in the last axis of ``indices``, as ONNX's
    ``ScatterND`` defines it."""
    *entries, depth = _extents(indices)
    extents = _extents(data)

    def row(at: Sequence[Any], places: Any) -> Any:
        first = _flat(at, entries) * depth
        position = [_from_start(places[first + axis], extents[axis]) for axis in range(depth)]
        return _if_inside(position, extents[:depth], _flat(position, extents[:depth]))

    return _scattered(data, indices, updates, entries, row, product(extents[depth:]), reduction)


def scatter_elements(data: Any, indices: Any, updates: Any, axis: int, reduction: str) -> Any:
    """``data`` with ``updates`` applied at the places that ``indices`` names on ``axis``, as ONNX's
    ``ScatterElements`` defines it."""
    entries, extents = _extents(indices), _extents(data)
    axis %= len(extents)

    def row(at: Sequence[Any], places: Any) -> Any:
        place = _from_start(places[_flat(at, entries)], extents[axis])
        whole = _flat([*at[:axis], place, *at[axis + 1 :]], extents)
        return _if_inside([place], extents[axis : axis + 1], whole)

    return _scattered(data, indices, updates, entries, row, 1, reduction)


def _scattered(
    data: Any,
    indices: Any,
    updates: Any,
    entries: Sequence[int],
    row: Row,
    width: int,
    reduction: str,
) -> Any:
    """A copy of ``data``, as rows of ``width`` elements, to which the rows of ``updates`` are applied
    in their order. Those whose row is out of range are left out."""
    from tvm import te, tirx
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as T

    size = product(_extents(data))
    rows = size // width if width else 0
    threads = cpu_threads(size + product(_extents(updates)))

    def loops(buffers: Sequence[Any], result: Any) -> Any:
        source, places, values, out = (T.buffer_proxy(each) for each in (*buffers, result))
        shares = T.parallel(threads) if threads > 1 else T.serial(1)
        with IRBuilder() as builder, shares as thread:
            first, end = (_int64(thread + n) * rows // threads for n in (0, 1))
            with T.serial((end - first) * width) as i:
                out[first * width + i] = source[first * width + i]
            with ExitStack() as stack:
                at = [stack.enter_context(T.serial(_int64(extent))) for extent in entries]
                target = row(at, places)
                stack.enter_context(T.If(tirx.all(target >= first, target < end)))
                stack.enter_context(T.Then())
                column = stack.enter_context(T.serial(_int64(width)))
                value = values[_flat(at, entries) * width + column]
                place = target * width + column
                out[place] = _REDUCTIONS[reduction](out[place], value)
        return builder.get()

    buffer = tirx.decl_buffer(data.shape, data.dtype, "out", layout=None)
    return te.extern(
        [data.shape],
        [data, indices, updates],
        lambda inputs, outputs: loops(inputs, outputs[0]),
        dtype=data.dtype,
        out_buffers=[buffer],
        name=NAME,
        tag=NAME,
    )


def _minimum(old: Any, new: Any) -> Any:
    from tvm import tirx

    return tirx.min(old, new)


def _maximum(old: Any, new: Any) -> Any:
    from tvm import tirx

    return tirx.max(old, new)


_REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "update": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": _minimum,
    "max": _maximum,
}


def _extents(tensor: Any) -> list[int]:
    return [int(extent) for extent in tensor.shape]


def _flat(position: Sequence[Any], extents: Sequence[int]) -> Any:
    """The index, in 64 bits, of a position in an array of these extents, in C order."""
    index = _int64(0)
    for each, extent in zip(position, extents, strict=True):
        index = index * extent + each
    return index


def _from_start(index: Any, extent: int) -> Any:
    """An index that counts from the end if it is negative, as one from the start."""
    from tvm import tirx

    index = _int64(index)
    return tirx.Select(index < 0, index + extent, index)


def _if_inside(position: Sequence[Any], extents: Sequence[int], index: Any) -> Any:
    """``index``, or -1 if the position is outside of these extents."""
    from tvm import tirx

    inside = [tirx.all(n >= 0, n < extent) for n, extent in zip(position, extents, strict=True)]
    return tirx.Select(tirx.all(*inside), index, _int64(-1)) if inside else index


def _int64(value: Any) -> Any:
    from tvm import tirx

    return tirx.IntImm("int64", value) if isinstance(value, int) else value.astype("int64")


def _legalize_nd(builder: Any, call: Any) -> Any:
    return builder.call_te(scatter_nd, *call.args, str(call.attrs.reduction))


def _legalize_elements(builder: Any, call: Any) -> Any:
    axis, reduction = int(call.attrs.axis), str(call.attrs.reduction)
    return builder.call_te(scatter_elements, *call.args, axis, reduction)


LEGALIZERS = {"relax.scatter_elements": _legalize_elements, "relax.scatter_nd": _legalize_nd}
"""As ``relax.transform.LegalizeOps`` takes them."""
