"""What takes the place of some nodes of an ONNX model."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tvmtune.networks.onnx.fold import constant_result, is_small
from tvmtune.networks.onnx.operators import graphs_in, standard_version

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


class Replacement:
    """Nodes and constants that take the place of some nodes of ``model``. Names within a graph get a
    prefix, so that they are unique.

    ``known`` are the values of the constants that nodes may read, ``taken`` the model's names, sorted.
    Nodes whose results are constant become constants.
    """

    def __init__(
        self, known: Mapping[str, np.ndarray], taken: Sequence[str], model: onnx.ModelProto
    ) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.known = dict(known)
        self._weights: dict[str, onnx.TensorProto] = {}
        self._constants: dict[str, np.ndarray] = {}
        self._taken = taken
        self._opsets = model.opset_import
        self._opset = standard_version(model)

    def prefix(self, name: str) -> str:
        """The start of names for what belongs to ``name``; none of the model's has it."""
        found = f"{name}/"
        while (place := bisect.bisect_left(self._taken, found)) < len(self._taken):
            if not self._taken[place].startswith(found):
                break
            found += "/"
        return found

    def scalar(self, name: str) -> float | None:
        """The value of a constant with one element; None for anything else."""
        value = self.known.get(name)
        return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else None

    def add_weights(self, graph: onnx.GraphProto, prefix: str) -> dict[str, str]:
        """Add the weights of ``graph``; returns their new names."""
        for tensor in graph.initializer:
            copy = onnx.TensorProto()
            copy.CopyFrom(tensor)
            copy.name = prefix + tensor.name
            self._weights[copy.name] = copy
            if is_small(tensor):
                self.known[copy.name] = numpy_helper.to_array(tensor)
        return {tensor.name: prefix + tensor.name for tensor in graph.initializer}

    def add_nodes(self, graph: onnx.GraphProto, prefix: str, names: Mapping[str, str]) -> list[str]:
        """Add the nodes of ``graph``, which read what ``names`` maps to; returns the names of the
        graph's results."""
        names = dict(names)
        for node in graph.node:
            names.update((output, prefix + output) for output in node.output if output)
        for node in graph.node:
            self.add(_renamed(node, names))
        return [names.get(info.name, info.name) for info in graph.output]

    def add(self, node: onnx.NodeProto) -> None:
        """Add the node, or its result if that is constant."""
        value = constant_result(node, self.known, self._opsets)
        if value is None:
            self.nodes.append(node)
        else:
            self.add_constant(node.output[0], value)

    def add_constant(self, name: str, value: np.ndarray) -> None:
        self.known[name] = self._constants[name] = value

    def weights(self, read: Collection[str]) -> list[onnx.TensorProto]:
        """The weights and constants that are ``read``: loops compute many that nothing reads."""
        constants = [
            numpy_helper.from_array(value, name)
            for name, value in self._constants.items()
            if name in read
        ]
        return [*(copy for name, copy in self._weights.items() if name in read), *constants]

    def stack(self, tensors: Sequence[str], axis: int, output: str) -> None:
        """Add nodes that stack tensors along a new axis."""
        prefix = self.prefix(output)
        parts = [f"{prefix}{i}" for i in range(len(tensors))]
        for tensor, part in zip(tensors, parts, strict=True):
            self.add_with_integers("Unsqueeze", tensor, [part], "axes", [axis])
        self.add(helper.make_node("Concat", parts, [output], axis=axis))

    def add_with_integers(
        self,
        operator: str,
        source: str,
        outputs: Sequence[str],
        name: str,
        values: Sequence[int],
        **attributes: Any,
    ) -> None:
        """Add a node with integers that are an attribute before opset 13, and then an input."""
        inputs = [source]
        if self._opset < 13:
            attributes[name] = list(values)
        else:
            inputs.append(self.prefix(outputs[0]) + name)
            self.add_constant(inputs[-1], np.array(values, "int64"))
        self.add(helper.make_node(operator, inputs, outputs, **attributes))


def _renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """A copy that reads and defines these names. Those that its subgraphs define stay: they get others
    when the subgraphs are inlined in turn."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.name = ""
    for fields in (copy.input, copy.output):
        fields[:] = [names.get(name, name) for name in fields]
    for graph in graphs_in(copy):
        own = {each.name for each in (*graph.input, *graph.initializer)}
        own.update(output for each in graph.node for output in each.output)
        outer = {name: new for name, new in names.items() if name not in own}
        for info in graph.output:
            info.name = outer.get(info.name, info.name)
        nodes = [_renamed(each, outer) for each in graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
    return copy
