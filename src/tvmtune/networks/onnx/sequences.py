"""Sequences of ONNX models whose length is known, replaced by their tensors.

TVM's importer inserts at the end where a position of -1 asks for the place before the last element.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper

from tvmtune.networks.onnx.fold import constant_result, small_constants, static_shapes, with_nodes
from tvmtune.networks.onnx.operators import (
    SEQUENCE_MAKERS,
    SEQUENCE_READERS,
    names_defined,
    names_read,
    names_read_by,
)
from tvmtune.networks.onnx.replacement import Replacement

if TYPE_CHECKING:
    from collections.abc import Collection

LIMITS = {
    "ConcatFromSequence": "an empty sequence",
    "SequenceAt": "a position that depends on the data",
    "SequenceErase": "a position that depends on the data",
    "SequenceInsert": "a position that depends on the data",
    "SplitToSequence": "a split that depends on the data",
}
"""What is not supported, by operator."""


def without_sequences(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` with tensors in place of what reads known sequences, without those that nothing
    else reads.

    The model should be folded. It is not changed, and returned if there is nothing to replace.
    """
    if not any(node.op_type in SEQUENCE_MAKERS for node in model.graph.node):
        return model
    return _Sequences(model).replaced()


def unknown(model: onnx.ModelProto) -> tuple[onnx.NodeProto, str] | None:
    """The first node because of which :func:`without_sequences` left sequences in the model that it
    returned, and why."""
    sequences = _Sequences(model)
    sequences.replaced()
    return next(iter(sequences.unknown), None)


class _Unknown(Exception):
    """What a node makes of sequences, or reads of them, is not known; the message is the reason, if it
    is not that of another."""


class _Sequences:
    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        self._out = Replacement(small_constants(model), names_defined(model.graph), model)
        self._shapes: dict[str, tuple[int, ...]] | None = None
        self._elements: dict[str, list[str]] = {}
        """The tensors of the sequences that are known."""
        self.unknown: list[tuple[onnx.NodeProto, str]] = []
        """Nodes that stay, and why."""

    def replaced(self) -> onnx.ModelProto:
        for node in self._model.graph.node:
            try:
                if node.op_type in SEQUENCE_READERS:
                    self._read(node)
                    continue
                if node.op_type in (*SEQUENCE_MAKERS, "Identity"):
                    self._make(node)
            except _Unknown as reason:
                if str(reason):
                    self.unknown.append((node, str(reason)))
            self._out.nodes.append(node)
            # Positions may be computed from lengths, which only become constants here.
            value = constant_result(node, self._out.known, self._model.opset_import)
            if value is not None:
                self._out.known[node.output[0]] = value
        original = {output for node in self._model.graph.node for output in node.output}
        nodes = self._read_nodes(original)
        if len(nodes) == len(self._model.graph.node) and all(
            ours is theirs for ours, theirs in zip(nodes, self._model.graph.node, strict=True)
        ):
            return self._model
        result = with_nodes(self._model, nodes)
        result.graph.initializer.extend(self._out.weights(names_read(result.graph)))
        return result

    def _read_nodes(self, original: Collection[str]) -> list[onnx.NodeProto]:
        """Those that are needed: not what makes known sequences, nor their parts, if nothing reads
        them."""
        read = {info.name for info in self._model.graph.output}
        kept: list[onnx.NodeProto] = []
        for node in reversed(self._out.nodes):
            optional = node.output[0] in self._elements or node.output[0] not in original
            if optional and read.isdisjoint(node.output):
                continue
            kept.append(node)
            read |= names_read_by(node)
        return kept[::-1]

    def _elements_of(self, sequence: str) -> list[str]:
        if sequence not in self._elements:
            raise _Unknown
        return list(self._elements[sequence])

    def _make(self, node: onnx.NodeProto) -> None:
        """Remember the tensors of the sequence that a node makes or copies."""
        if node.op_type == "SequenceEmpty":
            elements = []
        elif node.op_type == "SequenceConstruct":
            elements = list(node.input)
        elif node.op_type == "SplitToSequence":
            elements = self._split(node)
        else:
            elements = self._elements_of(node.input[0])
            count = len(elements)
            if node.op_type == "SequenceErase":
                del elements[self._position(node, 1, count, default=count - 1)]
            elif node.op_type == "SequenceInsert":
                # The end is a position, too, but negative ones count from the last element.
                place = self._position(node, 2, count, default=count, end=count + 1)
                elements.insert(place, node.input[1])
        self._elements[node.output[0]] = elements

    def _position(
        self, node: onnx.NodeProto, number: int, count: int, *, default: int, end: int | None = None
    ) -> int:
        """The position among ``count`` elements that is a node's input of this number. It must be below
        ``end``, which is their number unless given."""
        name = node.input[number] if len(node.input) > number else ""
        value = self._out.scalar(name)
        if name and value is None:
            raise _Unknown("the position depends on the data")
        position = default if value is None else int(value)
        if position < 0:
            position += count
        if not 0 <= position < (count if end is None else end):
            raise _Unknown(f"the sequence has {count} elements, and the position is {position}")
        return position

    def _split(self, node: onnx.NodeProto) -> list[str]:
        """Parts of a tensor, whose extents are given or are 1."""
        if self._shapes is None:
            self._shapes = static_shapes(self._model)
        shape, output = self._shapes.get(node.input[0]), node.output[0]
        attributes = _integers(node)
        split = node.input[1] if len(node.input) > 1 else ""
        if shape is None or (split and split not in self._out.known):
            raise _Unknown("the split depends on the data")
        axis = attributes.get("axis", 0) % len(shape)
        sizes = _sizes(shape[axis], self._out.known[split] if split else None)
        prefix = self._out.prefix(output)
        parts = [f"{prefix}{i}" for i in range(len(sizes))]
        squeezed = not split and not attributes.get("keepdims", 1)
        whole = [f"{part}/whole" for part in parts] if squeezed else parts
        if not parts:
            return []
        if len(sizes) == 1:
            self._out.add(helper.make_node("Identity", [node.input[0]], whole))
        else:
            self._out.add_with_integers("Split", node.input[0], whole, "split", sizes, axis=axis)
        if squeezed:
            for one, part in zip(whole, parts, strict=True):
                self._out.add_with_integers("Squeeze", one, [part], "axes", [axis])
        return parts

    def _read(self, node: onnx.NodeProto) -> None:
        """Add what takes the place of a node that reads a sequence; raises :class:`_Unknown`."""
        elements, output = self._elements_of(node.input[0]), node.output[0]
        if node.op_type == "SequenceLength":
            self._out.add_constant(output, np.array(len(elements), "int64"))
        elif node.op_type == "SequenceAt":
            position = self._position(node, 1, len(elements), default=0)
            self._out.add(helper.make_node("Identity", [elements[position]], [output]))
        elif not elements:
            raise _Unknown("the sequence is empty")
        elif _integers(node).get("new_axis"):
            self._out.stack(elements, _integers(node)["axis"], output)
        else:
            axis = _integers(node)["axis"]
            self._out.add(helper.make_node("Concat", elements, [output], axis=axis))


def _integers(node: onnx.NodeProto) -> dict[str, int]:
    """The attributes, by name."""
    return {each.name: each.i for each in node.attribute}


def _sizes(extent: int, split: np.ndarray | None) -> list[int]:
    """Extents of the parts of a ``SplitToSequence``."""
    if split is None:
        return [1] * extent
    if split.ndim:
        return [int(size) for size in split]
    size = int(split)
    return [min(size, extent - start) for start in range(0, extent, size)]
