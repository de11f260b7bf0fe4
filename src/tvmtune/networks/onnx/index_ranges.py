"""Ranges of integer inputs that are looked up in tables, such as token ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import helper

from tvmtune.networks.onnx.fold import static_shapes

if TYPE_CHECKING:
    import onnx

    from tvmtune.types import TensorSpec

_PASSES_ON = {"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
"""Operators whose result has the values of their first input."""

_LOOKUPS = {
    "Gather": [(1, 0)],
    "EmbedLayerNormalization": [(0, 2), (1, 4), (8, 3)],
}
"""Operators that look up indices, and the positions of each input of indices and of its table."""


def index_ranges(
    model: onnx.ModelProto, inputs: tuple[TensorSpec, ...]
) -> dict[str, tuple[int, int]]:
    """The lowest and highest index, by input, that is valid for every table it is looked up in.

    Inputs that are no indices are left out. The shapes of ``model`` are static.
    """
    nodes = model.graph.node
    origin = {spec.name: spec.name for spec in inputs if spec.dtype.startswith(("int", "uint"))}
    if not origin or not any(node.op_type in _LOOKUPS for node in nodes):
        return {}
    shapes = static_shapes(model)
    ranges: dict[str, tuple[int, int]] = {}
    for node in nodes:
        if node.op_type in _PASSES_ON and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
            continue
        for place, table in _LOOKUPS.get(node.op_type, ()):
            if place >= len(node.input) or node.input[place] not in origin:
                continue
            name, shape = origin[node.input[place]], shapes.get(node.input[table])
            if shape is not None:
                axis = {a.name: helper.get_attribute_value(a) for a in node.attribute}.get(
                    "axis", 0
                )
                last = shape[axis] - 1
                ranges[name] = (0, min(last, ranges.get(name, (0, last))[1]))
    return ranges
