"""Small ONNX models for tests: every kind of network in a size that compiles in a second or two.

An extent may be a string, which makes it a symbolic dimension of that name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvmtune.networks.zoo.graph_builder import GraphBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence

OPSETS = [helper.make_opsetid("", 17)]


def tiny_cnn(
    batch: int = 1, *, size: int = 32, classes: int = 10, seed: int = 0
) -> onnx.ModelProto:
    """``data`` (N, 3, size, size) -> ``logits`` (N, classes): the layers of the zoo's networks.

    A strided, a depthwise, a pointwise and a residual 3x3 convolution, max pooling, a classifier.
    """
    g = GraphBuilder("tiny-cnn", seed=seed)
    x = g.relu(g.conv_bn(g.input("data", (batch, 3, size, size)), "stem", 8, 3, stride=2, pad=1))
    x = g.max_pool(x, "pool", 3, stride=2, pad=1)
    x = g.relu(g.conv_bn(x, "depthwise", 8, 3, pad=1, groups=8))
    x = g.relu(g.conv_bn(x, "pointwise", 16, 1))
    y = g.conv_bn(x, "branch", 16, 3, pad=1, mean=-x.moments.mean, variance=0.6)
    x = g.relu(g.add(y, x, "sum"))
    x = g.global_average_pool(x, "average")
    return g.model(g.dense(x, "classifier", classes, output="logits"))


def tiny_encoder(batch: int | str = 1, sequence: int | str = 8) -> onnx.ModelProto:
    """One transformer encoder layer with two inputs and two outputs.

    ``ids`` (N, S) int64, below 32, and ``mask`` (N, S) int64, 1 where a token counts ->
    ``hidden`` (N, S, 16) and ``pooled`` (N, 16). Two heads of width 8.
    """
    rng = np.random.RandomState(0)
    weights: list[onnx.TensorProto] = []

    def weight(name: str, *shape: int, scale: float = 1.0) -> str:
        array = (rng.standard_normal(shape) * scale).astype(np.float32)
        weights.append(numpy_helper.from_array(array, name))
        return name

    def constant(name: str, value: object, dtype: str) -> str:
        weights.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    nodes: list[onnx.NodeProto] = []

    def node(op: str, inputs: Sequence[str], output: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, [output], name=f"{output}_node", **attributes))
        return output

    def linear(x: str, name: str, inner: int, outer: int, output: str | None = None) -> str:
        y = node("MatMul", [x, weight(f"{name}.weight", inner, outer, scale=inner**-0.5)], name)
        return node(
            "Add", [y, weight(f"{name}.bias", outer, scale=0.1)], output or f"{name}_biased"
        )

    def layer_norm(x: str, output: str) -> str:
        gamma = constant(f"{output}.weight", np.linspace(0.9, 1.1, 16), "float32")
        beta = constant(f"{output}.bias", np.linspace(-0.1, 0.1, 16), "float32")
        return node("LayerNormalization", [x, gamma, beta], output, axis=-1, epsilon=1e-5)

    x = node("Gather", [weight("embedding", 32, 16), "ids"], "embedded", axis=0)
    split = constant("split_shape", [0, 0, 2, 8], "int64")
    heads = {}
    for part, order in (("query", (0, 2, 1, 3)), ("key", (0, 2, 3, 1)), ("value", (0, 2, 1, 3))):
        y = node("Reshape", [linear(x, part, 16, 16), split], f"{part}_split")
        heads[part] = node("Transpose", [y], f"{part}_heads", perm=order)
    scores = node("MatMul", [heads["query"], heads["key"]], "scores")
    scores = node("Mul", [scores, constant("scale", 8**-0.5, "float32")], "scaled")
    # (1 - mask) * -10000, broadcast over heads and queries.
    mask = node("Cast", ["mask"], "mask_float", to=TensorProto.FLOAT)
    mask = node("Sub", [constant("one", 1.0, "float32"), mask], "masked")
    mask = node("Mul", [mask, constant("low", -1e4, "float32")], "penalty")
    mask = node("Unsqueeze", [mask, constant("mask_axes", [1, 2], "int64")], "penalties")
    attention = node(
        "Softmax", [node("Add", [scores, mask], "masked_scores")], "attention", axis=-1
    )
    y = node("MatMul", [attention, heads["value"]], "context")
    y = node("Transpose", [y], "context_joined", perm=(0, 2, 1, 3))
    y = node("Reshape", [y, constant("join_shape", [0, 0, 16], "int64")], "context_flat")
    x = layer_norm(node("Add", [x, linear(y, "projection", 16, 16)], "attended"), "norm1")
    y = linear(x, "expand", 16, 32)
    erf = node("Erf", [node("Mul", [y, constant("root", 0.5**0.5, "float32")], "gelu1")], "gelu2")
    erf = node("Mul", [node("Add", [erf, "one"], "gelu3"), y], "gelu4")
    y = node("Mul", [erf, constant("half", 0.5, "float32")], "gelu5")
    y = node("Add", [x, linear(y, "contract", 32, 16)], "transformed")
    hidden = layer_norm(y, "hidden")
    first = node("Gather", [hidden, constant("zero", 0, "int64")], "first", axis=1)
    pooled = node("Tanh", [linear(first, "pooler", 16, 16)], "pooled")

    def info(name: str, kind: int, *shape: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    graph = helper.make_graph(
        nodes,
        "tiny-encoder",
        [info(name, TensorProto.INT64, batch, sequence) for name in ("ids", "mask")],
        [
            info(hidden, TensorProto.FLOAT, batch, sequence, 16),
            info(pooled, TensorProto.FLOAT, batch, 16),
        ],
        weights,
    )
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=8)


def one_node(
    op: str, *, domain: str = "", shape: Sequence[int | str | None] = (2, 3), **attributes: object
) -> onnx.ModelProto:
    """``x`` -> one node called ``the_node`` -> ``y``, whose shape the file does not declare."""
    node = helper.make_node(op, ["x"], ["y"], name="the_node", domain=domain, **attributes)
    graph = helper.make_graph(
        [node],
        "one-node",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    opsets = [*OPSETS, helper.make_opsetid(domain, 1)] if domain else OPSETS
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)
