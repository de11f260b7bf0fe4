"""Weights of recurrent operators that a file computes from others.

PyTorch orders gates in another way than ONNX, and its exporter writes slices and concatenations of the
weights into the file. They are larger than what :mod:`tvmtune.networks.onnx.fold` evaluates.
"""

from __future__ import annotations

import numpy as np
import onnx

from tvmtune.arrays import aligned
from tvmtune.networks.onnx import weights as onnx_weights
from tvmtune.networks.onnx.fold import NOT_PURE, evaluate
from tvmtune.networks.onnx.operators import STANDARD

_OPERATORS = ("GRU", "LSTM", "RNN")
_WEIGHTS = range(1, 4)
"""The inputs W, R and B."""


def fold_recurrent_weights(
    model: onnx.ModelProto, weights: dict[str, np.ndarray]
) -> onnx.ModelProto:
    """Return ``model`` with weights in place of what is computed from weights for W, R and B.

    Weights that the model only declares are read from ``weights``, to which new ones are added. The
    model itself is not changed, and returned if there is nothing to compute.
    """
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    wanted = {
        node.input[place]
        for node in model.graph.node
        if node.op_type in _OPERATORS and node.domain in STANDARD
        for place in _WEIGHTS
        if place < len(node.input) and node.input[place]
    }.difference(tensors, (info.name for info in model.graph.input))
    computed = _computed(model, wanted, tensors, weights) if wanted else {}
    names = wanted & computed.keys()
    if not names:
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for name in names:
        array = aligned(computed[name])
        weights[f"{name}/folded"] = array
        kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        onnx_weights.declare(result, f"{name}/folded", array.shape, kind)
    for node in result.graph.node:
        if node.op_type in _OPERATORS and node.domain in STANDARD:
            for place in _WEIGHTS:
                if place < len(node.input) and node.input[place] in names:
                    node.input[place] += "/folded"
    _drop_unused(result.graph, computed)
    return result


def _computed(
    model: onnx.ModelProto,
    wanted: set[str],
    tensors: dict[str, onnx.TensorProto],
    weights: dict[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """Results by name of the nodes that compute what is wanted, as far as they read only weights."""
    needed = set(wanted)
    for node in reversed(model.graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
    computed: dict[str, np.ndarray] = {}
    for node in model.graph.node:
        pure = node.domain in STANDARD and node.op_type not in NOT_PURE
        sources = {name for name in node.input if name}
        if not pure or not needed.intersection(node.output):
            continue
        if all(name in computed or name in tensors for name in sources):
            known = {
                name: computed[name]
                if name in computed
                else onnx_weights.value(tensors[name], weights)
                for name in sources
            }
            results = evaluate(node, known, model.opset_import)
            computed.update(zip(node.output, results or (), strict=False))
    return computed


def _drop_unused(graph: onnx.GraphProto, computed: dict[str, np.ndarray]) -> None:
    """Remove nodes with computed results that nothing reads any more."""
    used = {output.name for output in graph.output}
    kept = []
    for node in reversed(graph.node):
        if used.intersection(node.output) or not all(name in computed for name in node.output):
            used.update(node.input)
            kept.append(node)
    del graph.node[:]
    graph.node.extend(reversed(kept))
