"""Batch normalization is folded into the convolution before it, and only where that is sound."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tvmtune.networks.onnx.batch_norm import fold_batch_norms


def conv_and_norm(*, bias=True, shared=False, training=0, variable_scale=False) -> onnx.ModelProto:
    """(1, 3, 8, 8) through a 3x3 convolution with 4 channels and a batch normalization."""
    rng = np.random.RandomState(0)
    weights = {"w": rng.randn(4, 3, 3, 3), "b": rng.randn(4), "beta": rng.randn(4)}
    weights |= {"gamma": rng.rand(4) + 0.5, "mean": rng.randn(4), "var": rng.rand(4) + 0.1}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"] if bias else ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node(
            "BatchNormalization",
            ["c", "gamma", "beta", "mean", "var"],
            ["y", "m2", "v2"] if training else ["y"],
            epsilon=1e-3,
            training_mode=training,
        ),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 8, 8])]
    if shared:
        outputs.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, [1, 4, 8, 8]))
    if variable_scale:
        del weights["gamma"]
        inputs.append(helper.make_tensor_value_info("gamma", TensorProto.FLOAT, [4]))
    initializers = [numpy_helper.from_array(v.astype("f4"), k) for k, v in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("bias", [True, False])
def test_the_folded_convolution_computes_the_same(bias):
    model = conv_and_norm(bias=bias)
    folded = fold_batch_norms(model)
    assert operators(folded) == ["Conv"]
    x = {"x": np.random.RandomState(1).randn(1, 3, 8, 8).astype("f4")}
    before, after = (ReferenceEvaluator(m).run(None, x)[0] for m in (model, folded))
    assert np.abs(before - after).max() <= 1e-5 * np.abs(before).max()


def test_unused_parameters_are_dropped_and_the_model_itself_is_unchanged():
    model = conv_and_norm()
    folded = fold_batch_norms(model)
    assert len(folded.graph.initializer) == 2
    assert operators(model) == ["Conv", "BatchNormalization"]


def test_a_batch_norm_without_a_convolution_becomes_a_product_and_a_sum():
    model = conv_and_norm(shared=True)
    folded = fold_batch_norms(model)
    assert operators(folded) == ["Conv", "Mul", "Add"]
    x = {"x": np.random.RandomState(1).randn(1, 3, 8, 8).astype("f4")}
    before, after = (ReferenceEvaluator(m).run(None, x) for m in (model, folded))
    for one, other in zip(before, after, strict=True):
        assert np.abs(one - other).max() <= 1e-5 * np.abs(one).max()


@pytest.mark.parametrize("case", [{"training": 1}, {"variable_scale": True}])
def test_a_batch_norm_that_cannot_be_folded_stays(case):
    assert operators(fold_batch_norms(conv_and_norm(**case))) == ["Conv", "BatchNormalization"]


def branching(read: str) -> onnx.ModelProto:
    """:func:`conv_and_norm`, whose result a branch multiplies by ``read``."""
    model = conv_and_norm()
    names = {"yes": np.array(True), "factor": np.full((4, 1, 1), 2, "float32")}
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in names.items())
    info = helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 4, 8, 8])
    branches = {
        f"{name}_branch": helper.make_graph([node], name, [], [info])
        for name, node in (
            ("then", helper.make_node("Mul", ["y", read], ["z"])),
            ("else", helper.make_node("Identity", ["y"], ["z"])),
        )
    }
    model.graph.node.append(helper.make_node("If", ["yes"], ["out"], **branches))
    model.graph.output[0].name = "out"
    return model


@pytest.mark.parametrize(
    ("read", "kinds"), [("factor", ["Conv", "If"]), ("c", ["Conv", "Mul", "Add", "If"])]
)
def test_what_only_a_branch_reads_is_kept(read: str, kinds: list[str]):
    model = branching(read)
    folded = fold_batch_norms(model)
    assert operators(folded) == kinds
    x = {"x": np.random.RandomState(1).randn(1, 3, 8, 8).astype("f4")}
    before, after = (ReferenceEvaluator(m).run(None, x)[0] for m in (model, folded))
    assert np.abs(before - after).max() <= 1e-5 * np.abs(before).max()
