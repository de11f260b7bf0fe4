"""Constant folding for ONNX models with static shapes.

Exporters leave arithmetic on shapes in their files (Shape, Gather, Mul, Concat, Reshape) so that the
batch may vary. With static shapes all of it is constant, and the importer supports only a part of it.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

from tvmtune.networks.onnx.evaluator import evaluator
from tvmtune.networks.onnx.operators import graphs_in
from tvmtune.networks.onnx.weights import LARGEST

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_LARGEST = LARGEST
"""Tensors of up to this many elements are folded: shapes, axes and masks, not weights."""

NOT_PURE = {
    "Bernoulli",
    "Dropout",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}
"""Operators whose result is not a function of their inputs."""
_KEPT = {*NOT_PURE, "DequantizeLinear"}
"""Not folded; constants stay in integers for the kernels that read them."""


def fold(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` with weights in place of nodes whose small results are constant.

    The inputs must have static shapes. The model itself is not changed, and returned if there is
    nothing to fold.
    """
    result = model
    while True:
        # Folding lets shape inference get further, which may make more nodes constant.
        constants = _constants(result)
        if not constants:
            return result
        nodes = [node for node in result.graph.node if node.output[0] not in constants]
        weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
        result = with_nodes(result, nodes, weights)


def with_nodes(
    model: onnx.ModelProto,
    nodes: Iterable[onnx.NodeProto],
    weights: Iterable[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """A copy of ``model`` with these nodes in place of its own, and further weights."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    result.graph.node.extend(nodes)
    result.graph.initializer.extend(weights)
    return result


def skeleton(model: onnx.ModelProto, *, largest: int = _LARGEST) -> onnx.ModelProto:
    """The model with weights of more than ``largest`` elements as inputs, for checks and inference.

    Both serialize the model, which is slow with weights and fails above 2 GiB.
    """
    light_model = onnx.ModelProto(ir_version=model.ir_version)
    light_model.opset_import.extend(model.opset_import)
    source, target = model.graph, light_model.graph
    target.name = source.name or "main"
    target.node.extend(source.node)
    target.input.extend(source.input)
    target.output.extend(source.output)
    target.sparse_initializer.extend(source.sparse_initializer)
    listed = {info.name for info in source.input}
    for tensor in source.initializer:
        if math.prod(tensor.dims) <= largest:
            target.initializer.append(tensor)
        elif tensor.name not in listed:
            info = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            target.input.append(info)
    return light_model


def _constants(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Results of nodes that do not depend on the inputs, by name."""
    if not any(node.op_type in ("Constant", "Shape", "Size") for node in model.graph.node):
        return {}
    shapes = static_shapes(model)
    known = small_constants(model)
    outputs = {info.name for info in model.graph.output}
    folded: dict[str, np.ndarray] = {}
    for node in model.graph.node:
        if not _is_foldable(node):
            continue
        name = node.output[0]
        if node.op_type in ("Shape", "Size") and node.input[0] in shapes:
            # The evaluator needs only the shape: broadcasting makes one without the memory.
            shape = shapes[node.input[0]]
            hollow = {node.input[0]: np.broadcast_to(np.float32(0), shape)}
            value = constant_result(node, hollow, model.opset_import)
        elif math.prod(shapes.get(name, ())) <= _LARGEST:
            value = constant_result(node, known, model.opset_import)
        else:
            continue
        if value is None:
            continue
        known[name] = value
        if name not in outputs:
            folded[name] = value
    return folded


def small_constants(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """The weights that may be folded, by name."""
    return {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if is_small(tensor)
    }


def is_small(tensor: onnx.TensorProto) -> bool:
    """Whether a weight may be folded."""
    return math.prod(tensor.dims) <= _LARGEST


def constant_result(
    node: onnx.NodeProto,
    known: Mapping[str, np.ndarray],
    opsets: Iterable[onnx.OperatorSetIdProto],
) -> np.ndarray | None:
    """The result of a node whose inputs are ``known``; None if they are not, or it is not folded."""
    if not _is_foldable(node) or any(source and source not in known for source in node.input):
        return None
    values = evaluate(node, known, opsets)
    return None if values is None or values[0].size > _LARGEST else values[0]


def _is_foldable(node: onnx.NodeProto) -> bool:
    return (
        len(node.output) == 1
        and node.domain in ("", "ai.onnx")
        and node.op_type not in _KEPT
        and not _has_subgraph(node)
    )


def static_shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Static shapes of values, as far as shape inference finds them."""
    light_model = skeleton(model)
    with contextlib.suppress(Exception):  # some models run although inference refuses them
        light_model = shape_inference.infer_shapes(light_model, data_prop=True)
    graph = light_model.graph
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for info in (*graph.input, *graph.value_info, *graph.output):
        tensor_type = info.type.tensor_type
        dims = tensor_type.shape.dim
        if tensor_type.HasField("shape") and all(dim.HasField("dim_value") for dim in dims):
            shapes[info.name] = tuple(dim.dim_value for dim in dims)
    return shapes


def fold_node(
    operator: str,
    inputs: Sequence[np.ndarray | None],
    attributes: Mapping[str, Any],
    *,
    outputs: int,
    opset: int,
) -> list[np.ndarray] | None:
    """The results of an operator of the standard on constants.

    None if they are no function of them, too large or not supported by the evaluator.
    """
    if operator in _KEPT or any(array is not None and array.size > _LARGEST for array in inputs):
        return None
    names = ["" if array is None else f"input{i}" for i, array in enumerate(inputs)]
    node = helper.make_node(operator, names, [f"result{i}" for i in range(outputs)], **attributes)
    if _has_subgraph(node):
        return None
    known = {name: a for name, a in zip(names, inputs, strict=True) if a is not None}
    values = evaluate(node, known, [helper.make_opsetid("", opset)])
    return None if values is None or any(v.size > _LARGEST for v in values) else values


def evaluate(
    node: onnx.NodeProto,
    known: Mapping[str, np.ndarray],
    opsets: Iterable[onnx.OperatorSetIdProto],
) -> list[np.ndarray] | None:
    """The results of ``node``, or None if the evaluator does not support it."""
    feed = {name: known[name] for name in node.input if name}
    try:
        infos = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for name, a in feed.items()
        ]
        results = [
            helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in node.output
        ]
        graph = helper.make_graph([node], "fold", infos, results)
        single = helper.make_model(graph, opset_imports=list(opsets))
        with np.errstate(all="ignore"):  # infinities and NaN are results as any other
            values = evaluator(single).run(None, feed)
    except Exception:  # the node stays, and the importer reports a real error
        return None
    if not all(isinstance(value, (np.ndarray, np.generic)) for value in values):
        return None
    return [np.asarray(value) for value in values]


def _has_subgraph(node: onnx.NodeProto) -> bool:
    return next(graphs_in(node), None) is not None
