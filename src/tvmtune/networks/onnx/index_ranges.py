"""Ranges of integer inputs: indices of tables, such as token ids, and the lengths of sequences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from onnx import TensorProto, helper, numpy_helper

from tvmtune.networks.onnx.fold import static_shapes

if TYPE_CHECKING:
    import onnx

    from tvmtune.types import TensorSpec

_PASSES_ON = {"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
"""Operators whose result has the values of their first input."""
_PASSES_SOME_ON = _PASSES_ON | {"Expand", "Gather", "Slice", "Split"}
"""Operators whose results have values of their first input, each perhaps several times."""
_JOINS = {"Concat", "Max", "Min"}
"""Operators whose results have values of all their inputs."""

_OF_SEVERAL_AXES = {"GatherND", "ScatterND"}
"""Operators whose indices are for as many axes as their last axis is long."""
_LOOKUPS = {
    "Gather": [(1, 0)],
    "GatherBlockQuantized": [(1, 0)],
    "GatherElements": [(1, 0)],
    "GatherND": [(1, 0)],
    "ReverseSequence": [(1, 0)],
    "Scatter": [(1, 0)],
    "ScatterElements": [(1, 0)],
    "ScatterND": [(1, 0)],
    "EmbedLayerNormalization": [(0, 2), (1, 4), (8, 3)],
}
"""Operators that look up indices, and the positions of each input of indices and of its table. Lengths
of ``ReverseSequence`` are drawn like indices: those of 0 and 1 would reverse nothing."""

_LENGTHS = {"GroupQueryAttention"}
"""Operators whose results beyond the lengths of sequences, two of their inputs, are undefined."""

_COUNTS = _PASSES_ON | {"Add", "Sub"}
"""Operators that make lengths of the sum of a mask."""


def index_ranges(
    model: onnx.ModelProto, inputs: tuple[TensorSpec, ...]
) -> dict[str, tuple[int, int]]:
    """The lowest and highest index, by input, that is valid for every table it is looked up in.

    Masks whose sums are lengths of sequences, and such lengths themselves, are full. Other inputs are
    left out. The shapes of ``model`` are static.
    """
    nodes = model.graph.node
    # The inputs whose values each tensor has.
    origin = {spec.name: {spec.name} for spec in inputs if spec.dtype.startswith(("int", "uint"))}
    if not origin or not any(node.op_type in (*_LOOKUPS, *_LENGTHS) for node in nodes):
        return {}
    shapes = static_shapes(model)
    ranges: dict[str, tuple[int, int]] = {}
    sums: dict[str, set[str]] = {}  # the masks that were summed
    totals = {
        tensor.name: int(numpy_helper.to_array(tensor).reshape(-1)[0])
        for tensor in model.graph.initializer
        if tensor.data_type == TensorProto.INT32 and math.prod(tensor.dims) == 1
    }
    for node in nodes:
        first = node.input[0] if node.input else ""
        if node.op_type == "ReduceSum" and first in origin:
            sums[node.output[0]] = origin[first]
        elif node.op_type in _COUNTS and first in sums:
            sums[node.output[0]] = sums[first]
        for length, whole in _lengths(node, shapes, totals):
            if length in sums:
                ranges.update((name, (1, 1)) for name in sums[length])
            elif length in origin and whole is not None:
                ranges.update((name, (whole, whole)) for name in origin[length])
        passed = (first,) if node.op_type in _PASSES_SOME_ON else ()
        if node.op_type in _JOINS:
            passed = node.input
        if names := set().union(*(origin.get(each, ()) for each in passed)):
            origin.update((output, names) for output in node.output)
        for place, table in _LOOKUPS.get(node.op_type, ()):
            if place >= len(node.input) or node.input[place] not in origin:
                continue
            shape = shapes.get(node.input[table])
            if shape is None or 0 in shape:
                continue
            last = _extent(node, shape, shapes.get(node.input[place], ())) - 1
            for name in origin[node.input[place]]:
                ranges[name] = (0, min(last, ranges.get(name, (0, last))[1]))
    return ranges


def _extent(node: onnx.NodeProto, table: tuple[int, ...], indices: tuple[int, ...]) -> int:
    """Of the axis of the table that the indices are for; the smallest of several."""
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    if node.op_type not in _OF_SEVERAL_AXES:
        name = "time_axis" if node.op_type == "ReverseSequence" else "axis"
        return table[attributes.get(name, 0)]
    first = attributes.get("batch_dims", 0)
    depth = indices[-1] if indices else 1
    return min(table[first : first + depth])


def _lengths(
    node: onnx.NodeProto, shapes: dict[str, tuple[int, ...]], totals: dict[str, int]
) -> list[tuple[str, int | None]]:
    """The inputs of a node that are lengths, and what they are for whole sequences, if known."""
    if node.op_type not in _LENGTHS or len(node.input) < 7:
        return []
    query, past, last, total = (node.input[i] for i in (0, 3, 5, 6))
    longest = totals.get(total)
    if longest is None and not past and query in shapes:
        longest = shapes[query][1]
    return [(last, None if longest is None else longest - 1), (total, longest)]
