"""The structure hash and the weights hash of an ONNX model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onnx import AttributeProto, TensorProto, helper

from tvmtune.networks.hashing import NetworkHasher
from tvmtune.networks.onnx import weights as onnx_weights
from tvmtune.types import digest

if TYPE_CHECKING:
    from collections.abc import Iterable

    import onnx

    from tvmtune.networks.onnx.weights import Weights

_INTEGERS = (TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL)
"""Types whose small tensors are described by value."""

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
    bounds; names do not count. The weights hash covers all other values, in the order of use.
    ``weights`` holds the values of weights that the model only declares.
    """
    hasher = NetworkHasher()
    walker = _GraphWalker(hasher, weights)
    opsets = sorted((o.domain or "ai.onnx", o.version) for o in model.opset_import)
    structure = {"opsets": opsets, "graph": walker.graph(model.graph, {}, {})}
    return digest(structure), hasher.weights_hash()


class _GraphWalker:
    """Describes graphs with edge numbers in place of names, and hashes weights on the way."""

    def __init__(self, hasher: NetworkHasher, weights: Weights | None) -> None:
        self._hasher = hasher
        self._weights = weights
        self._count = 0

    def graph(
        self,
        graph: onnx.GraphProto,
        outer_edges: dict[str, Any],
        outer_tensors: dict[str, onnx.TensorProto],
    ) -> dict[str, Any]:
        """Describe ``graph``; as a subgraph it sees ``outer`` edges and tensors."""
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
        return self._hasher.tensor(
            onnx_weights.value(tensor, self._weights),
            [tensor.data_type, list(tensor.dims)],
            by_value=parameter or tensor.data_type in _INTEGERS,
        )


def _name(attribute: onnx.AttributeProto) -> str:
    return attribute.name


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
