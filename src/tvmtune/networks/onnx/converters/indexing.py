"""Converters of operators that select or write elements by their indices."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvmtune.networks.onnx.converters.request import (
    Converter,
    Node,
    constant,
    is_constant,
    is_tensor,
    required,
    reshaped_from,
)
from tvmtune.networks.relax_operators import dtype, shape
from tvmtune.networks.scatters import scatter


def indices(node: Node, tensor: Any, extents: list[int]) -> Any:
    """Indices counted from 0 and clamped to ``extents``.

    Out-of-range indices are an error in ONNX. A kernel cannot raise one, and would access memory out of
    bounds, so they are clamped.
    """
    value = constant(tensor)
    limits = np.array(extents if len(extents) > 1 else extents[0])
    if value is not None:
        counted = value.astype("int64")
        if ((counted < -limits) | (counted >= limits)).any():
            raise ValueError(f"an index is out of range for the extent {extents}")
        return relax.const(np.where(counted < 0, counted + limits, counted), "int64")
    kind = dtype(tensor)
    limit: Any = relax.const(limits.astype(kind), kind)
    zero, one = relax.const(0, kind), relax.const(1, kind)
    if kind.startswith("int"):
        shifted = node.emit(relax.op.add(tensor, limit))
        negative = node.emit(relax.op.less(tensor, zero))
        tensor = node.emit(relax.op.where(negative, shifted, tensor))
        tensor = node.emit(relax.op.maximum(tensor, zero))
    last = node.emit(relax.op.subtract(limit, one))
    return node.emit(relax.op.minimum(tensor, last))


def gather(node: Node) -> Any:
    """The importer's kernel crashes on an id out of range."""
    data, ids = node.inputs
    if not is_tensor(data) or not is_tensor(ids) or is_constant(data, ids):
        return node.standard(data, ids)  # shapes and constants
    axis = node.attrs.get("axis", 0) % len(shape(data))
    # indices() has clamped already; the default mode, "fast", prints a warning.
    return relax.op.take(data, indices(node, ids, [shape(data)[axis]]), axis, mode="clip")


def gather_elements(node: Node) -> Any:
    """The importer's kernel crashes on an index out of range."""
    data, ids = node.inputs
    axis = node.attrs.get("axis", 0) % len(shape(data))
    return relax.op.gather_elements(data, indices(node, ids, [shape(data)[axis]]), axis)


def gather_nd(node: Node) -> Any:
    """The importer's kernel crashes on an index out of range."""
    data, ids = node.inputs
    first = node.attrs.get("batch_dims", 0)
    extents = shape(data)[first : first + shape(ids)[-1]]
    return relax.op.gather_nd(data, indices(node, ids, extents), first)


def scatter_elements(node: Node) -> Any:
    """The importer's kernel writes out of bounds for an index out of range."""
    data, ids, updates = node.inputs
    axis = node.attrs.get("axis", 0) % len(shape(data))
    reduction = node.text("reduction", "none").replace("none", "update")
    return scatter(
        *(node.builder, data, ids, updates, axis, reduction),
        checked=lambda index: indices(node, index, [shape(data)[axis]]),
    )


def scatter_nd(node: Node) -> Any:
    """The importer's kernel writes out of bounds for an index out of range. An assignment to a slice is
    exported as one to its rows."""
    data, ids, updates = node.inputs
    if 0 in shape(updates):
        return data
    rows = _consecutive_rows(node, ids, shape(data)[0])
    if rows is not None and node.text("reduction", "none") == "none":
        kept = (range(rows.start), range(rows.stop, shape(data)[0]))
        before, after = (
            [node.op.strided_slice(data, [0], [each.start], [each.stop])] if each else []
            for each in kept
        )
        return relax.op.concat([*before, updates, *after], axis=0)
    return node.standard(data, indices(node, ids, shape(data)[: shape(ids)[-1]]), updates)


def _consecutive_rows(node: Node, ids: Any, extent: int) -> range | None:
    """The rows that ``ids`` of shape (n, 1) names, if they are constant and follow each other."""
    if len(shape(ids)) != 2 or shape(ids)[1] != 1:
        return None
    value = constant(reshaped_from(node.builder, ids))
    if value is None or not value.size:
        return None
    value = value.reshape(-1)
    first = int(value[0]) + (extent if value[0] < 0 else 0)
    if (np.diff(value) != 1).any() or not 0 <= first <= extent - value.size:
        return None
    return range(first, first + value.size)


def compress(node: Node) -> Any:
    """Supported for a constant condition, which makes the result's shape static."""
    data = node.inputs[0]
    chosen = np.flatnonzero(required(node.inputs[1], "condition"))
    axis = node.attrs.get("axis")
    if axis is None:
        data, axis = node.emit(relax.op.reshape(data, [-1])), 0
    ids = relax.const(chosen.astype("int64"), "int64")
    return relax.op.take(data, ids, axis % len(shape(data)), mode="clip")


def one_hot(node: Node) -> Any:
    """The importer refuses a floating-point depth, and values other than float32 and int64."""
    depth = int(required(node.inputs[1], "depth").reshape(-1)[0])
    values = required(node.inputs[2], "values")
    ids = node.inputs[0]
    if not dtype(ids).startswith(("int", "uint")):
        ids = node.emit(relax.op.astype(ids, "int64"))
    axis = node.attrs.get("axis", -1) % (len(shape(ids)) + 1)
    ids = node.emit(relax.op.expand_dims(ids, axis))
    kind = dtype(ids)
    if kind.startswith("int"):
        shifted = node.emit(relax.op.add(ids, relax.const(depth, kind)))
        negative = node.emit(relax.op.less(ids, relax.const(0, kind)))
        ids = node.emit(relax.op.where(negative, shifted, ids))
    places = np.arange(depth).reshape([depth if i == axis else 1 for i in range(len(shape(ids)))])
    same = node.emit(relax.op.equal(ids, relax.const(places.astype(kind), kind)))
    name = values.dtype.name
    off, on = (relax.const(v, name) for v in values)
    return relax.op.where(same, on, off)


def reverse_sequence(node: Node) -> Any:
    """One kernel for lengths that are constant or not."""
    data, lengths = node.inputs
    rank = len(shape(data))
    batch, time = (
        node.attrs.get(name, default) % rank
        for name, default in (("batch_axis", 1), ("time_axis", 0))
    )
    if batch == time:
        raise ValueError(f"its batch_axis and its time_axis are both {batch}")
    steps = shape(data)[time]
    if shape(lengths) != [shape(data)[batch]]:
        raise ValueError(
            f"its sequence_lens have the shape {tuple(shape(lengths))}, "
            f"not ({shape(data)[batch]},), the batch"
        )
    known = constant(lengths)
    if known is not None and ((known < 0) | (known > steps)).any():
        raise ValueError(f"its sequence_lens must be from 0 to {steps}, the number of steps")

    def reversed_sequences(data: Any, lengths: Any) -> Any:
        def element(*place: Any) -> Any:
            step = place[time]
            # The kernel cannot refuse lengths that are out of range, and must not read out of bounds.
            length = tirx.min(lengths[place[batch]], steps)
            source = tirx.if_then_else(step < length, length - 1 - step, step)
            return data[(*place[:time], source, *place[time + 1 :])]

        return te.compute(data.shape, element, name="reverse_sequence")

    return node.builder.emit_te(
        reversed_sequences, data, lengths, primfunc_name_hint="reverse_sequence"
    )


def slice_(node: Node) -> Any:
    """The importer does not read bounds from attributes, where they are before opset 10."""
    if node.opset >= 10:
        return node.standard(*node.inputs)
    starts, ends = node.attrs["starts"], node.attrs["ends"]
    axes = node.attrs.get("axes", range(len(starts)))
    bounds = [relax.const(np.array(b, "int64"), "int64") for b in (starts, ends, axes)]
    return node.standard(node.inputs[0], *bounds)


def top_k(node: Node) -> Any:
    """The importer ignores k at opset 10, where it became an input, and refuses results that need not
    be sorted, although sorted ones will do."""
    x, k = node.inputs[0], node.attrs.get("k")
    if k is None:
        k = required(node.inputs[1], "k").item()
    axis = node.attrs.get("axis", -1)
    extent = shape(x)[axis]
    if not 1 <= k <= extent:
        raise ValueError(f"its k is {k}, not from 1 to {extent}, the extent of axis {axis}")
    largest = bool(node.attrs.get("largest", 1))
    return relax.op.topk(x, k, axis, ret_type="both", largest=largest, dtype="int64")


CONVERTERS: dict[str, Converter] = {
    "Compress": compress,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "OneHot": one_hot,
    "ReverseSequence": reverse_sequence,
    "Scatter": scatter_elements,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "Slice": slice_,
    "TopK": top_k,
}

LIMITS = {
    "Compress": "a condition that is not constant",
    "OneHot": "a depth or values that are not constant",
    "TopK": "a k that is not constant",
}
"""What is not supported, by operator."""
