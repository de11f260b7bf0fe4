"""Computes what static shapes make constant.

Exporters leave arithmetic on shapes in their files (Shape, Gather, Mul, Concat, Reshape), so that
the batch may vary. Here shapes are static, so that all of it is known; and the importer takes only
a part of it.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper, shape_inference

from tvmtune.networks.onnx.weights import LARGEST

if TYPE_CHECKING:
    from collections.abc import Mapping

_LARGEST = LARGEST
"""Elements up to which a tensor takes part: this is for shapes, axes and masks, not for weights."""

_NEVER = {
    "Bernoulli",
    "Dropout",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}
"""Operators whose result is not a function of their inputs."""


def fold(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` with constant small results as weights in the place of their nodes.

    The inputs must have static shapes. The model itself is not changed; it is returned if there is
    nothing to fold.
    """
    result = model
    while True:
        # What has been folded lets inference see further, and that may make more nodes constant.
        constants = _constants(result)
        if not constants:
            return result
        folded = onnx.ModelProto()
        folded.CopyFrom(result)
        nodes = [node for node in result.graph.node if node.output[0] not in constants]
        del folded.graph.node[:]
        folded.graph.node.extend(nodes)
        for name, array in constants.items():
            folded.graph.initializer.append(numpy_helper.from_array(array, name))
        result = folded


def decide_branches(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` with the branch that is taken in the place of each If of known condition.

    Exporters leave such nodes where the program asked for a shape. The model itself is not changed.
    """
    while True:
        conditions = {
            tensor.name: bool(numpy_helper.to_array(tensor).reshape(-1)[0])
            for tensor in model.graph.initializer
            if tensor.data_type == TensorProto.BOOL and math.prod(tensor.dims) == 1
        }
        if not any(_decided(node, conditions) for node in model.graph.node):
            return model
        result = onnx.ModelProto()
        result.CopyFrom(model)
        del result.graph.node[:]
        for node in model.graph.node:
            if not _decided(node, conditions):
                result.graph.node.append(node)
                continue
            name = "then_branch" if conditions[node.input[0]] else "else_branch"
            branch = next(a.g for a in node.attribute if a.name == name)
            result.graph.initializer.extend(branch.initializer)
            result.graph.node.extend(branch.node)
            for inner, outer in zip(branch.output, node.output, strict=True):
                result.graph.node.append(helper.make_node("Identity", [inner.name], [outer]))
        model = fold(result)  # what was inside may be constant, too


def _decided(node: onnx.NodeProto, conditions: Mapping[str, bool]) -> bool:
    return node.op_type == "If" and node.input[0] in conditions


def skeleton(model: onnx.ModelProto, *, largest: int = _LARGEST) -> onnx.ModelProto:
    """The model with its weights of more elements as inputs: what checks and inference need.

    They serialise what they are given, which for a whole model takes long, and fails above 2 GiB.
    """
    light = onnx.ModelProto(ir_version=model.ir_version)
    light.opset_import.extend(model.opset_import)
    source, target = model.graph, light.graph
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
    return light


def _constants(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Results of nodes that can be told without the inputs, by name."""
    if not any(node.op_type in ("Constant", "Shape", "Size") for node in model.graph.node):
        return {}
    shapes = static_shapes(model)
    known = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if math.prod(tensor.dims) <= _LARGEST
    }
    outputs = {info.name for info in model.graph.output}
    folded: dict[str, np.ndarray] = {}
    for node in model.graph.node:
        if len(node.output) != 1 or node.domain not in ("", "ai.onnx") or node.op_type in _NEVER:
            continue
        name = node.output[0]
        if node.op_type in ("Shape", "Size") and node.input[0] in shapes:
            # Its value is not needed, and only its shape need be made for the evaluator.
            shape = shapes[node.input[0]]
            value = _evaluate(node, {node.input[0]: np.broadcast_to(np.float32(0), shape)}, model)
        elif all(not source or source in known for source in node.input):
            if math.prod(shapes.get(name, ())) > _LARGEST or _has_subgraph(node):
                continue
            value = _evaluate(node, known, model)
        else:
            continue
        if value is None or value.size > _LARGEST:
            continue
        known[name] = value
        if name not in outputs:
            folded[name] = value
    return folded


def static_shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Static shapes of all values for which inference finds one."""
    light = skeleton(model)
    with contextlib.suppress(Exception):  # a model that runs although inference refuses it
        light = shape_inference.infer_shapes(light, data_prop=True)
    graph = light.graph
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for info in (*graph.input, *graph.value_info, *graph.output):
        tensor_type = info.type.tensor_type
        dims = tensor_type.shape.dim
        if tensor_type.HasField("shape") and all(dim.HasField("dim_value") for dim in dims):
            shapes[info.name] = tuple(dim.dim_value for dim in dims)
    return shapes


def _evaluate(
    node: onnx.NodeProto, known: Mapping[str, np.ndarray], model: onnx.ModelProto
) -> np.ndarray | None:
    """The only result of ``node``, or None if the evaluator does not support it."""
    from onnx.reference import ReferenceEvaluator

    feed = {name: known[name] for name in node.input if name}
    try:
        infos = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for name, a in feed.items()
        ]
        result = helper.make_tensor_value_info(node.output[0], TensorProto.UNDEFINED, None)
        graph = helper.make_graph([node], "fold", infos, [result])
        single = helper.make_model(graph, opset_imports=model.opset_import)
        value = next(iter(ReferenceEvaluator(single).run(None, feed)))
    except Exception:  # whatever it is, the node stays, and a real error shows when it is imported
        return None
    return np.asarray(value) if isinstance(value, (np.ndarray, np.generic)) else None


def _has_subgraph(node: onnx.NodeProto) -> bool:
    kinds = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
    return any(attribute.type in kinds for attribute in node.attribute)
