"""Sequences of ONNX models whose length is known, replaced by their tensors.

TVM's importer inserts at the end where a position of -1 asks for the place before the last element.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper

from tvmtune.networks.onnx.fold import small_constants, static_shapes, with_nodes
from tvmtune.networks.onnx.operators import (
    SEQUENCE_MAKERS,
    SEQUENCE_READERS,
    graphs_in,
)
from tvmtune.networks.onnx.subgraphs import Inlined

if TYPE_CHECKING:
    from collections.abc import Sequence

LIMITS = {
    "ConcatFromSequence": "an empty sequence",
    "SequenceAt": "a position that depends on the data",
    "SequenceErase": "a position that depends on the data",
    "SequenceInsert": "a position that depends on the data",
    "SplitToSequence": "a split that depends on the data",
}
"""What is not supported, by operator."""


def without_sequences(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` with the tensors of its sequences in place of them.

    The model should be folded. It is not changed, and returned if it has no sequences, or one that is
    not known.
    """
    if not any(node.op_type in SEQUENCE_MAKERS for node in model.graph.node):
        return model
    try:
        return _Replacement(model).result()
    except _Unknown:
        return model


class _Unknown(Exception):
    """A sequence whose tensors are not known, or not all of them."""


class _Replacement:
    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        self._out = Inlined(small_constants(model), model)
        self._shapes: dict[str, tuple[int, ...]] | None = None
        self._sequences: dict[str, list[str]] = {}

    def result(self) -> onnx.ModelProto:
        for node in self._model.graph.node:
            copied = node.op_type == "Identity" and node.input[0] in self._sequences
            if node.op_type in SEQUENCE_MAKERS or copied:
                self._sequences[node.output[0]] = self._elements(node)
            elif node.op_type in SEQUENCE_READERS:
                self._read(node, self._elements_of(node.input[0]))
            else:
                self._out.nodes.append(node)
        kept = with_nodes(self._model, self._out.nodes, self._out.weights)
        if not self._sequences.keys().isdisjoint(_names_read(kept.graph)):
            raise _Unknown
        return kept

    def _elements_of(self, sequence: str) -> list[str]:
        if sequence not in self._sequences:
            raise _Unknown
        return list(self._sequences[sequence])

    def _elements(self, node: onnx.NodeProto) -> list[str]:
        """The tensors of the sequence that a node makes."""
        if node.op_type == "SequenceEmpty":
            return []
        if node.op_type == "SequenceConstruct":
            return list(node.input)
        if node.op_type == "SplitToSequence":
            return self._split(node)
        elements = self._elements_of(node.input[0])
        if node.op_type == "SequenceErase":
            del elements[self._position(node, 1, len(elements), default=len(elements) - 1)]
        elif node.op_type == "SequenceInsert":
            # The standard counts from the end of the sequence before the insertion.
            end = len(elements)
            elements.insert(
                self._position(node, 2, end + 1, from_end=end, default=end), node.input[1]
            )
        return elements

    def _position(
        self, node: onnx.NodeProto, number: int, count: int, *, default: int, from_end: int = -1
    ) -> int:
        """The position, of ``count``, that is a node's input of this number."""
        name = node.input[number] if len(node.input) > number else ""
        value = self._out.scalar(name)
        if name and value is None:
            raise _Unknown
        position = default if value is None else int(value)
        if position < 0:
            position += count if from_end < 0 else from_end
        if not 0 <= position < count:
            raise _Unknown
        return position

    def _split(self, node: onnx.NodeProto) -> list[str]:
        """Parts of a tensor, whose extents are given or are 1."""
        if self._shapes is None:
            self._shapes = static_shapes(self._model)
        shape, output = self._shapes.get(node.input[0]), node.output[0]
        attributes = {each.name: each.i for each in node.attribute}
        split = node.input[1] if len(node.input) > 1 else ""
        if shape is None or (split and split not in self._out.known):
            raise _Unknown
        axis = attributes.get("axis", 0) % len(shape)
        sizes = _sizes(shape[axis], self._out.known[split] if split else None)
        parts = [f"{output}/{i}" for i in range(len(sizes))]
        squeezed = not split and not attributes.get("keepdims", 1)
        whole = [f"{part}/whole" for part in parts] if squeezed else parts
        if len(sizes) == 1:
            self._out.add(helper.make_node("Identity", [node.input[0]], whole))
        else:
            self._out.add_with_integers("Split", node.input[0], whole, "split", sizes, axis=axis)
        if squeezed:
            for one, part in zip(whole, parts, strict=True):
                self._out.add_with_integers("Squeeze", one, [part], "axes", [axis])
        return parts

    def _read(self, node: onnx.NodeProto, elements: Sequence[str]) -> None:
        """Add what takes the place of a node that reads a sequence."""
        output = node.output[0]
        if node.op_type == "SequenceLength":
            self._out.add_constant(output, np.array(len(elements), "int64"))
            return
        if node.op_type == "SequenceAt":
            position = self._position(node, 1, len(elements), default=0)
            self._out.add(helper.make_node("Identity", [elements[position]], [output]))
            return
        if not elements:
            raise _Unknown
        attributes = {each.name: each.i for each in node.attribute}
        axis = attributes["axis"]
        if attributes.get("new_axis"):
            self._out.stack(elements, axis, output)
        else:
            self._out.add(helper.make_node("Concat", elements, [output], axis=axis))


def _sizes(extent: int, split: np.ndarray | None) -> list[int]:
    """Extents of the parts of a ``SplitToSequence``."""
    if split is None:
        return [1] * extent
    if split.ndim:
        return [int(size) for size in split]
    size = int(split)
    return [min(size, extent - start) for start in range(0, extent, size)]


def _names_read(graph: onnx.GraphProto) -> set[str]:
    """What nodes read, in subgraphs, too, and the results."""
    names = {info.name for info in graph.output}
    for node in graph.node:
        names.update(node.input)
        for inner in graphs_in(node):
            names |= _names_read(inner)
    return names
