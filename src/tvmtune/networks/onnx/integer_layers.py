"""Which layers of an ONNX network are computed in integers, and which tensors become bytes for that.

Convolutions and products with constant weights read bytes. What makes a tensor that they read returns
bytes, too, if it is another such layer, with its activation, or one of the operators that cost little
but memory traffic: sums of a residual network, pooling, concatenation, and moves of values. All others,
such as softmax and normalization, compute in floats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import helper

from tvmtune.dot_instructions import computes_groups
from tvmtune.networks.onnx.fold import static_shapes
from tvmtune.networks.onnx.operators import STANDARD
from tvmtune.types import product

_ACTIVATIONS = ("Relu", "Clip")
"""What an integer kernel computes by its bounds."""
_MOVES = ("MaxPool", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose")
"""Operators whose results are some of their input's values, in the same steps."""
_POOLS = ("AveragePool", "GlobalAveragePool", "ReduceMean")


@dataclass(frozen=True)
class Layer:
    """A convolution or product with constant weights."""

    name: str
    """That of the node, or of its output if another layer has the same."""
    operator: str
    input: str
    weight: str
    axis: int
    """Of the weights: the outputs, each of which has its own scale."""
    node_output: str
    output: str
    """The tensor that holds the result with bias and activation."""


class IntegerLayers:
    """The layers and the tensors of a network whose batch normalizations are folded."""

    def __init__(self, model: onnx.ModelProto, skipped: Collection[str] = ()) -> None:
        """``skipped``: names of layers that stay in float."""
        self._shapes = static_shapes(model)
        self._constants = set(weights := constants(model))
        self._floats = {
            name for name, tensor in weights.items() if tensor.data_type == onnx.TensorProto.FLOAT
        }
        self._makers = {name: node for node in model.graph.node for name in node.output}
        self._outputs = {info.name for info in model.graph.output}
        self._users = Counter(name for node in model.graph.node for name in node.input)
        self._users.update(self._outputs)
        self._only_reader = {
            name: node for node in model.graph.node for name in node.input if self._users[name] == 1
        }
        found = [(node, layer) for node in model.graph.node if (layer := self._layer(node))]
        names = _names([layer for _, layer in found])
        found = [
            (node, replace(layer, name=name))
            for (node, layer), name in zip(found, names, strict=True)
        ]
        self.all = [layer for _, layer in found]
        """In program order."""
        self.layers = [layer for layer in self.all if layer.name not in skipped]
        self._in_integers = {id(node) for node, layer in found if layer.name not in skipped}
        """The nodes that read bytes, by id."""
        tensors = self._spread()
        self.tensors = {name: self._range_of(name, tensors) for name in tensors}
        """Each tensor that becomes bytes, and the tensor whose range it has."""

    def reads_bytes(self, name: str, node: onnx.NodeProto) -> bool:
        """Whether a node that reads this tensor gets the rounded one: those that compute in integers
        do; others only if no floats are left to read."""
        if name not in self.tensors:
            return False
        return id(node) in self._in_integers or self._is_made_in_integers(name)

    def _spread(self) -> dict[str, None]:
        """The tensors that become bytes: the layers' inputs, and from there what they are made of."""
        found: dict[str, None] = {}
        todo = [layer.input for layer in reversed(self.layers)]
        while todo:
            name = todo.pop()
            if name in found:
                continue
            found[name] = None
            node = self._maker(name)
            if node is None or node.domain not in STANDARD:
                continue
            if sources := list(self._sources(node, name)):
                self._in_integers.add(id(node))
                todo += sources
        return found

    def _range_of(self, name: str, found: Collection[str]) -> str:
        """Moves change no value, so that both sides of one need the same steps."""
        while (node := self._makers.get(name)) and node.op_type in _MOVES:
            if node.input[0] not in found:
                break
            name = node.input[0]
        return name

    def _sources(self, node: onnx.NodeProto, name: str) -> Iterator[str]:
        """The inputs of an operator that should be bytes if its result is."""
        if node.op_type in _MOVES:
            # Values of a constant are no activations.
            if node.output[0] == name and node.input[0] not in self._constants:
                yield node.input[0]
        elif node.op_type in _POOLS:
            yield node.input[0]
        elif node.op_type == "Concat":
            yield from (each for each in node.input if each not in self._constants)
        elif node.op_type == "Add" and not self._constants & set(node.input):
            shapes = [self._shapes.get(each) for each in node.input]
            if shapes[0] is not None and shapes[0] == shapes[1]:
                yield from node.input
        elif node.op_type == "Mul" and not self._constants & set(node.input):
            # The gate of squeeze and excitation is small.
            sizes = [int(np.prod(self._shapes.get(each, (0,)))) for each in node.input]
            if sizes[0] and sizes[1] and sizes[0] != sizes[1]:
                yield node.input[sizes.index(max(sizes))]

    def _maker(self, name: str) -> onnx.NodeProto | None:
        """What computes a tensor, without activations and biases at its end."""
        node = self._makers.get(name)
        while node is not None and self._is_tail(node):
            name = self._data_of(node)
            if self._users[name] != 1:
                return None
            node = self._makers.get(name)
        return node

    def _is_tail(self, node: onnx.NodeProto) -> bool:
        if node.op_type in _ACTIVATIONS:
            return True
        if node.op_type != "Add" or not self._constants & set(node.input):
            return False
        maker = self._makers.get(self._data_of(node))
        return maker is not None and maker.op_type == "MatMul"

    def _data_of(self, node: onnx.NodeProto) -> str:
        return next((each for each in node.input if each not in self._constants), node.input[0])

    def _is_made_in_integers(self, name: str) -> bool:
        node = self._maker(name)
        return node is not None and id(node) in self._in_integers

    def _layer(self, node: onnx.NodeProto) -> Layer | None:
        if node.domain not in STANDARD or node.op_type not in ("Conv", "Gemm", "MatMul"):
            return None
        data, weight = node.input[:2]
        if weight not in self._floats or data in self._constants:
            return None
        if any(each not in self._constants for each in node.input[2:] if each):
            return None
        shape, extents = self._shapes.get(weight, ()), self._shapes.get(data, ())
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        axis = 0
        if node.op_type == "Conv":
            groups = int(attributes.get("group", 1))
            # What the widest instruction can compute, all can.
            if len(shape) not in (3, 4) or not computes_groups(groups, *shape[:2]):
                return None
        elif len(shape) != 2 or len(extents) < 2:
            return None
        elif node.op_type == "Gemm":
            plain = attributes.get("alpha", 1.0) == attributes.get("beta", 1.0) == 1.0
            if not plain or attributes.get("transA", 0):
                return None
            axis = 0 if attributes.get("transB", 0) else 1
            if not self._is_per_output(node.input[2:], shape[axis]):
                return None
        else:
            axis = 1
        output = str(node.output[0])
        return Layer(node.name, node.op_type, data, weight, axis, output, self._end(node))

    def _is_per_output(self, bias: Sequence[str], outputs: int) -> bool:
        """Whether a bias, if there is one, has one value, or one for each output: that of Gemm may also
        differ by row."""
        if not bias or not bias[0]:
            return True
        shape = self._shapes[bias[0]]
        size = product(shape)
        return size == 1 or (size == outputs and shape[-1] == outputs)

    def _end(self, node: onnx.NodeProto) -> str:
        """The tensor that holds a layer's result with bias and activation."""
        name = str(node.output[0])
        while (after := self._only_reader.get(name)) is not None and self._is_tail(after):
            name = str(after.output[0])
        return name


def _names(layers: Sequence[Layer]) -> list[str]:
    """A name for each layer that no other has: ONNX does not require names of nodes, nor different
    ones."""
    used = Counter(layer.name for layer in layers)
    outputs = {layer.node_output for layer in layers}

    def is_own(layer: Layer) -> bool:
        return (
            bool(layer.name)
            and used[layer.name] == 1
            and layer.name not in outputs - {layer.node_output}
        )

    return [layer.name if is_own(layer) else layer.node_output for layer in layers]


def constants(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Weights by name."""
    return {tensor.name: tensor for tensor in model.graph.initializer}
