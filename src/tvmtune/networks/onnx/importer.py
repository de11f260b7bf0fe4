"""TVM's importer of ONNX graphs with our converters and with weights outside of the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from onnx import TensorProto
from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter, onnx_input

from tvmtune.networks.onnx import weights as onnx_weights
from tvmtune.networks.onnx.converters import CONVERTERS, Node
from tvmtune.networks.onnx.converters.request import constant, is_tensor
from tvmtune.networks.onnx.fold import fold_node
from tvmtune.networks.relax_operators import shape

if TYPE_CHECKING:
    import onnx

    from tvmtune.networks.onnx.weights import Weights


class Importer(ONNXGraphImporter):
    """Imports a graph whose large weights are kept elsewhere."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(None, "float32", keep_params_in_input=False)
        self._weights = weights

    def _parse_graph_initializers(self, graph: onnx.GraphProto) -> None:
        _check_packed(graph)
        super()._parse_graph_initializers(graph)

    def _parse_array(self, tensor_proto: onnx.TensorProto) -> Any:
        array = onnx_weights.value(tensor_proto, self._weights)
        if onnx_weights.is_packed(tensor_proto):
            return tvm.runtime.tensor(onnx_weights.unpacked(array))
        if onnx_weights.is_declared(tensor_proto) and array.dtype.kind in "iuf":
            return tvm.runtime.from_dlpack(array)  # shares memory, no copy
        return tvm.runtime.tensor(np.array(array))

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        """Skipped: :mod:`tvmtune.networks.onnx.relax` checks them and names the nodes."""

    def _convert_operator(
        self, op_name: str, inputs: list[Any], attrs: dict[str, Any], opset: int
    ) -> Any:
        folded = _folded(op_name, inputs, attrs, opset)
        if folded is not None:
            return folded
        bare_name = op_name.rpartition(".")[2]  # TVM's converters have no domain

        def standard(*arguments: Any, operator: str = bare_name) -> Any:
            """TVM's own converter, for these or other inputs."""
            values = onnx_input(arguments)
            return super(Importer, self)._convert_operator(operator, values, attrs, opset)

        ours = CONVERTERS.get(op_name)
        if ours is None:
            result = standard(*inputs)
        else:
            result = ours(Node(self.bb, list(inputs), attrs, opset, standard))
            if isinstance(result, relax.Expr):
                result = self.bb.normalize(result)
        _check_static(result)
        return result


def _check_packed(graph: onnx.GraphProto) -> None:
    """Raise ValueError if a weight of fewer than 8 bits, which gets a larger type, is read by a node
    whose result may depend on the type."""
    packed = {t.name: t for t in graph.initializer if onnx_weights.is_packed(t)}
    for node in graph.node:
        if node.op_type.rpartition(".")[2] == "DequantizeLinear":
            continue
        for name in packed.keys() & {*node.input}:
            kind = TensorProto.DataType.Name(packed[name].data_type)
            raise ValueError(
                f"its input '{name}' is a weight of {kind}, which only DequantizeLinear may read"
            )


def _folded(op_name: str, inputs: list[Any], attrs: dict[str, Any], opset: int) -> Any:
    """The result of arithmetic on shapes and constants; None for any other node.

    Shape inference, which :mod:`tvmtune.networks.onnx.fold` relies on, stops at operators of ONNX
    Runtime. The importer's own arithmetic on shapes has few operators.
    """
    if "." in op_name:
        return None
    if op_name == "Shape" and is_tensor(inputs[0]):
        extents = np.array(shape(inputs[0]), "int64")
        return relax.const(extents[attrs.get("start", 0) : attrs.get("end")], "int64")
    arrays = [None if tensor is None else constant(tensor) for tensor in inputs]
    if not inputs or any(
        array is None and tensor is not None for array, tensor in zip(arrays, inputs, strict=True)
    ):
        return None
    attributes = {name: value for name, value in attrs.items() if name != "tvm_custom"}
    outputs = attrs["tvm_custom"]["num_outputs"]
    results = fold_node(op_name, arrays, attributes, outputs=outputs, opset=opset)
    if results is None:
        return None
    constants = [relax.const(result, result.dtype.name) for result in results]
    return constants[0] if outputs == 1 else relax.Tuple(constants)


def _check_static(result: Any) -> None:
    """Raise ValueError if the shape of a result is not static."""
    fields = result.ty.fields if isinstance(result.ty, relax.TupleType) else [result.ty]
    for kind in fields:
        if isinstance(kind, relax.TensorType) and (
            kind.shape is None or not all(isinstance(d, tvm.tirx.IntImm) for d in kind.shape)
        ):
            raise ValueError("the shape of its result depends on the data")
