"""Folds batch normalization into the convolution before it, or into one product and one sum.

TVM has a pass for the first, but computes the new weights in unscheduled kernels: 5 s for ResNet-18,
where NumPy takes a tenth. The second is for networks that normalize before they convolve (DenseNet),
and halves the four operations that TVM makes of it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tvmtune import arrays
from tvmtune.networks.onnx import weights as onnx_weights
from tvmtune.networks.onnx.fold import static_shapes
from tvmtune.networks.onnx.operators import names_read, names_read_by

if TYPE_CHECKING:
    from tvmtune.networks.onnx.weights import Weights

_DEFAULT_EPSILON = 1e-5


def fold_batch_norms(
    model: onnx.ModelProto, weights: dict[str, np.ndarray] | None = None
) -> onnx.ModelProto:
    """Return ``model`` with its batch normalizations folded; the model itself is not changed.

    ``Conv -> BatchNormalization`` becomes one ``Conv`` if all parameters are weights and nothing else
    uses the convolution's result. Other ``BatchNormalization`` by weights becomes ``Mul`` and ``Add``.
    Weights that the model only declares are read from ``weights``, to which new ones are added and from
    which unused ones are removed.
    """
    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    uses = Counter(name for node in graph.node for name in names_read_by(node))
    uses.update(output.name for output in graph.output)
    makers = {name: node for node in graph.node for name in node.output}
    ranks = _ranks(model)
    pairs, unpaired = {}, {}
    for node in graph.node:
        if (
            node.op_type != "BatchNormalization"
            or node.domain
            or len([name for name in node.output if name]) != 1
            or not all(name in tensors for name in node.input[1:])
            or _attribute(node, "training_mode", 0)
        ):
            continue
        conv = makers.get(node.input[0])
        if (
            conv is not None
            and conv.op_type == "Conv"
            and not conv.domain
            and uses[node.input[0]] == 1
            and all(name in tensors for name in conv.input[1:] if name)
        ):
            pairs[conv.output[0]] = node
        elif node.input[0] in ranks:
            unpaired[node.output[0]] = node
    if not pairs and not unpaired:
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    dropped = {id(node) for node in pairs.values()}
    nodes = []
    for node in graph.node:
        if id(node) in dropped:
            continue
        if node.op_type == "BatchNormalization" and node.output[0] in unpaired:
            nodes += _affine(node, ranks[node.input[0]], tensors, result, weights)
            continue
        norm = pairs.get(node.output[0]) if node.op_type == "Conv" else None
        nodes.append(node if norm is None else _merge(node, norm, tensors, result, weights))
    del result.graph.node[:]
    result.graph.node.extend(nodes)
    used = names_read(result.graph)
    kept = [tensor for tensor in result.graph.initializer if tensor.name in used]
    del result.graph.initializer[:]
    result.graph.initializer.extend(kept)
    if weights is not None:
        for name in set(weights) - used:
            del weights[name]
    # Older files also list weights as inputs: one that was removed must not become a real input.
    listed = [i for i in graph.input if i.name not in tensors or i.name in used]
    del result.graph.input[:]
    result.graph.input.extend(listed)
    return result


def _merge(
    conv: onnx.NodeProto,
    norm: onnx.NodeProto,
    tensors: dict[str, onnx.TensorProto],
    result: onnx.ModelProto,
    weights: dict[str, np.ndarray] | None,
) -> onnx.NodeProto:
    """The convolution that computes both; its weights become initializers of ``result``."""
    scale, mean, beta = _parameters(norm, tensors, weights)
    kernel = onnx_weights.value(tensors[conv.input[1]], weights)
    has_bias = len(conv.input) > 2 and conv.input[2]
    bias = _array(tensors[conv.input[2]], weights) if has_bias else 0.0
    shape = (-1,) + (1,) * (kernel.ndim - 1)
    names = [f"{norm.output[0]}/folded_weight", f"{norm.output[0]}/folded_bias"]
    arrays = [kernel * scale.reshape(shape).astype(kernel.dtype), (bias - mean) * scale + beta]
    for name, array in zip(names, arrays, strict=True):
        _add(result, weights, name, array.astype(kernel.dtype))
    merged = onnx.NodeProto()
    merged.CopyFrom(conv)
    del merged.input[:], merged.output[:]
    merged.input.extend([conv.input[0], *names])
    merged.output.append(norm.output[0])
    return merged


def _affine(
    norm: onnx.NodeProto,
    rank: int,
    tensors: dict[str, onnx.TensorProto],
    result: onnx.ModelProto,
    weights: dict[str, np.ndarray] | None,
) -> list[onnx.NodeProto]:
    """The product and the sum of a normalization that follows no convolution."""
    scale, mean, beta = _parameters(norm, tensors, weights)
    dtype = onnx_weights.value(tensors[norm.input[1]], weights).dtype
    output = norm.output[0]
    names = [f"{output}/folded_scale", f"{output}/folded_shift"]
    for name, array in zip(names, (scale, beta - mean * scale), strict=True):
        shape = (1, -1) + (1,) * (rank - 2)
        _add(result, weights, name, array.reshape(shape).astype(dtype))
    scaled = f"{output}/scaled"
    return [
        helper.make_node("Mul", [norm.input[0], names[0]], [scaled], name=norm.name),
        helper.make_node("Add", [scaled, names[1]], [output], name=norm.name),
    ]


def _parameters(
    norm: onnx.NodeProto, tensors: dict[str, onnx.TensorProto], weights: Weights | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scale, mean and shift of a normalization: ``(x - mean) * scale + shift``."""
    gamma, beta, mean, variance = (_array(tensors[name], weights) for name in norm.input[1:5])
    scale = gamma / np.sqrt(variance + _attribute(norm, "epsilon", _DEFAULT_EPSILON))
    return scale, mean, beta


def _add(
    result: onnx.ModelProto, weights: dict[str, np.ndarray] | None, name: str, array: np.ndarray
) -> None:
    """Add a weight to the model."""
    if weights is None:
        result.graph.initializer.append(numpy_helper.from_array(array, name))
    else:
        weights[name] = arrays.aligned(array)
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        onnx_weights.declare(result, name, array.shape, kind)


def _ranks(model: onnx.ModelProto) -> dict[str, int]:
    """Ranks of values, as far as shape inference finds them."""
    if all(node.op_type != "BatchNormalization" for node in model.graph.node):
        return {}
    return {name: len(shape) for name, shape in static_shapes(model).items()}


def _array(tensor: onnx.TensorProto, weights: Weights | None) -> np.ndarray:
    return onnx_weights.value(tensor, weights).astype(np.float64)


def _attribute(node: onnx.NodeProto, name: str, default: float) -> float:
    for attribute in node.attribute:
        if attribute.name == name:
            return float(helper.get_attribute_value(attribute))
    return default
