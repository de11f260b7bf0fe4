"""Sequences of ONNX models that grow by insertion, taken apart into their tensors.

The importer of TVM 0.27 does not return from an insertion into an empty sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Mapping


def take_apart(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` without sequences, if it inserts into any, and all are of known tensors.

    The model should be folded. It is not changed, and returned if there is nothing to do.
    """
    if not any(node.op_type == "SequenceInsert" for node in model.graph.node):
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    sequences: dict[str, list[str]] = {}
    known = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        elements = _elements(node, sequences, known)
        if elements is not None:
            sequences[node.output[0]] = elements
        elif any(name in sequences for name in node.input):
            read = _read(node, sequences[node.input[0]], known) if node.input else None
            if read is None:
                return model
            nodes, tensors = read
            result.graph.node.extend(nodes)
            result.graph.initializer.extend(tensors)
        else:
            result.graph.node.append(node)
    if any(info.name in sequences for info in model.graph.output):
        return model
    return result


def _elements(
    node: onnx.NodeProto,
    sequences: Mapping[str, list[str]],
    known: Mapping[str, onnx.TensorProto],
) -> list[str] | None:
    """The tensors of the sequence that a node makes; None if it makes none that is known."""
    if node.op_type == "SequenceEmpty":
        return []
    if node.op_type == "SequenceConstruct":
        return list(node.input)
    if not node.input or node.input[0] not in sequences:
        return None
    elements = list(sequences[node.input[0]])
    if node.op_type == "Identity":
        return elements
    if node.op_type != "SequenceInsert":
        return None
    place = len(elements)
    if len(node.input) > 2 and node.input[2]:
        position = _position(node.input[2], known)
        if position is None:
            return None
        place = position + len(elements) if position < 0 else position
    elements.insert(place, node.input[1])
    return elements


def _read(
    node: onnx.NodeProto, elements: list[str], known: Mapping[str, onnx.TensorProto]
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]] | None:
    """Nodes and constants in place of one that reads a sequence; None if there are none."""
    output = node.output[0]
    if node.op_type == "SequenceLength":
        return [], [numpy_helper.from_array(np.array(len(elements), "int64"), output)]
    if node.op_type == "SequenceAt":
        position = _position(node.input[1], known)
        if position is None or not -len(elements) <= position < len(elements):
            return None
        return [helper.make_node("Identity", [elements[position]], [output])], []
    if node.op_type != "ConcatFromSequence" or not elements:
        return None
    attributes = {each.name: each.i for each in node.attribute}
    axis, nodes, tensors = attributes["axis"], [], []
    if attributes.get("new_axis"):
        tensors = [numpy_helper.from_array(np.array([axis]), f"{output}/axis")]
        parts = [f"{output}/{i}" for i in range(len(elements))]
        for element, part in zip(elements, parts, strict=True):
            nodes.append(helper.make_node("Unsqueeze", [element, f"{output}/axis"], [part]))
        elements = parts
    return [*nodes, helper.make_node("Concat", elements, [output], axis=axis)], tensors


def _position(name: str, known: Mapping[str, onnx.TensorProto]) -> int | None:
    """Of a constant; None for anything else."""
    tensor = known.get(name)
    return None if tensor is None else int(numpy_helper.to_array(tensor).reshape(-1)[0])
