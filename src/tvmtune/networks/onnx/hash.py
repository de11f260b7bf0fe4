"""Two hashes of an ONNX model: what it computes with, and what it computes."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import AttributeProto, TensorProto, helper

from tvmtune.networks.onnx import weights as onnx_weights
from tvmtune.types import digest

if TYPE_CHECKING:
    from collections.abc import Iterable

    import onnx

    from tvmtune.networks.onnx.weights import Weights

_SMALL = 64
"""Up to so many integers are taken for axes, shapes or indices, which shape the program."""

_INTEGERS = (TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL)

_PARAMETERS = {
    ("Clip", 1),
    ("Clip", 2),
    ("Pad", 2),
    ("Resize", 1),
    ("Resize", 2),
    ("Upsample", 1),
}
"""Operator and position of floating-point inputs that are parameters rather than weights."""


def hashes(model: onnx.ModelProto, weights: Weights | None = None) -> tuple[str, str]:
    """Structure hash and weights hash of ``model``, 16 hex digits each.

    The structure is the nodes in the file's order, their attributes, the edges between them, shapes
    and dtypes of inputs and weights, and the values of small constants that act as axes, shapes or
    bounds. Names do not count. The weights hash covers all the other values, in the order of use.
    ``weights`` holds the values that the model only declares.
    """
    walker = _Walker(weights)
    opsets = sorted((o.domain or "ai.onnx", o.version) for o in model.opset_import)
    structure = {"opsets": opsets, "graph": walker.graph(model.graph, {}, {})}
    return digest(structure), walker.weights.hexdigest()[:16]


class _Walker:
    """Describes graphs with numbers in the place of names, and hashes the weights that it meets."""

    def __init__(self, values: Weights | None = None) -> None:
        self.weights = hashlib.sha256()
        self._values = values
        self._count = 0

    def graph(
        self,
        graph: onnx.GraphProto,
        outer_edges: dict[str, Any],
        outer_tensors: dict[str, onnx.TensorProto],
    ) -> dict[str, Any]:
        """Describe ``graph``; the ``outer`` things are those that a subgraph sees around it."""
        edges = dict(outer_edges)
        tensors = outer_tensors | {tensor.name: tensor for tensor in graph.initializer}
        inputs = []
        for info in graph.input:
            if info.name not in tensors:
                edges[info.name] = self._new_edge()
                tensor_type = info.type.tensor_type
                dims = [dim.dim_value or dim.dim_param for dim in tensor_type.shape.dim]
                inputs.append([tensor_type.elem_type, dims])
        nodes = []
        for node in graph.node:
            arguments = [
                self._argument(name, edges, tensors, (node.op_type, position))
                for position, name in enumerate(node.input)
            ]
            attributes = [
                self._attribute(a, edges, tensors) for a in sorted(node.attribute, key=_name)
            ]
            results = []
            for name in node.output:
                edges[name] = self._new_edge() if name else None
                results.append(edges[name])
            nodes.append([node.domain, node.op_type, arguments, attributes, results])
        outputs = [self._argument(info.name, edges, tensors, ("", 0)) for info in graph.output]
        return {"inputs": inputs, "nodes": nodes, "outputs": outputs}

    def _new_edge(self) -> int:
        self._count += 1
        return self._count

    def _argument(
        self,
        name: str,
        edges: dict[str, Any],
        tensors: dict[str, onnx.TensorProto],
        use: tuple[str, int],
    ) -> Any:
        """The edge called ``name``; a weight is described where it is first used."""
        if not name:
            return None
        if name in tensors and name not in edges:
            edges[name] = self._new_edge()
            return [edges[name], self._tensor(tensors[name], parameter=use in _PARAMETERS)]
        return edges.get(name, name)

    def _attribute(
        self,
        attribute: onnx.AttributeProto,
        edges: dict[str, Any],
        tensors: dict[str, onnx.TensorProto],
    ) -> list[Any]:
        value: Any
        if attribute.type == AttributeProto.GRAPH:
            value = self.graph(attribute.g, edges, tensors)
        elif attribute.type == AttributeProto.GRAPHS:
            value = [self.graph(graph, edges, tensors) for graph in attribute.graphs]
        elif attribute.type == AttributeProto.TENSOR:
            value = self._tensor(attribute.t)
        elif attribute.type == AttributeProto.TENSORS:
            value = [self._tensor(tensor) for tensor in attribute.tensors]
        else:
            value = _plain(helper.get_attribute_value(attribute))
        return [attribute.name, value]

    def _tensor(self, tensor: onnx.TensorProto, *, parameter: bool = False) -> list[Any]:
        array = onnx_weights.value(tensor, self._values)
        described: list[Any] = [tensor.data_type, list(tensor.dims)]
        if array.size <= _SMALL and (parameter or tensor.data_type in _INTEGERS):
            return [*described, array.tolist()]
        self.weights.update(repr(described).encode())
        self.weights.update(_content(array))
        return described


def _name(attribute: onnx.AttributeProto) -> str:
    return attribute.name


def _content(array: np.ndarray) -> bytes | memoryview:
    if array.dtype == object:  # strings
        return repr(array.tolist()).encode()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _plain(value: Any) -> Any:
    """An attribute's value as JSON has it."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, (int, float, str)):
        return value
    if hasattr(value, "SerializeToString"):  # a type or a sparse tensor
        return value.SerializeToString(deterministic=True).hex()
    return _plain_all(value)


def _plain_all(values: Iterable[Any]) -> list[Any]:
    return [_plain(value) for value in values]
