"""Folding of what static shapes make constant, before the import into Relax."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from models import OPSETS, tiny_cnn
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.onnx.fold import fold
from tvmtune.networks.onnx.network import OnnxNetwork


def shape_arithmetic() -> onnx.ModelProto:
    """``x`` (N, 4, 6) -> ``y`` (N, 2, 12): the target computed as exporters leave it, with Div."""
    steps = [
        ("Shape", ["x"], "shape", {}),
        ("Constant", [], "zero", {"value_ints": [0]}),
        ("Constant", [], "two", {"value_ints": [2]}),
        ("Constant", [], "all", {"value_int": -1}),
        ("Unsqueeze", ["all", "zero"], "rest", {}),
        ("Gather", ["shape", "zero"], "batch", {}),
        ("Constant", [], "one", {"value_ints": [1]}),
        ("Gather", ["shape", "one"], "rows", {}),
        ("Div", ["rows", "two"], "half", {}),
        ("Concat", ["batch", "half", "rest"], "target", {"axis": 0}),
        ("Reshape", ["x", "target"], "reshaped", {}),
        ("Relu", ["reshaped"], "y", {}),
    ]
    nodes = [helper.make_node(op, i, [o], name=o, **attributes) for op, i, o, attributes in steps]
    graph = helper.make_graph(
        nodes,
        "shapes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", "a", "b"])],
    )
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=8)


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def bound(model: onnx.ModelProto) -> onnx.ModelProto:
    content = OnnxNetwork(model, name="net", batch=3).to_onnx()
    assert content is not None
    return onnx.load_model_from_string(content)


def test_arithmetic_on_static_shapes_is_folded():
    folded = fold(bound(shape_arithmetic()))
    assert operators(folded) == ["Reshape", "Relu"]
    target = next(w for w in folded.graph.initializer if w.name == "target")
    assert numpy_helper.to_array(target).tolist() == [3, 2, -1]


def test_a_network_that_computes_its_shapes_runs_in_tvm():
    import tvm
    from tvm import relax

    network = OnnxNetwork(shape_arithmetic(), name="net", batch=3)
    assert network.outputs[0].shape == (3, 2, 12)
    inputs = random_inputs(network.inputs, seed=0)
    library = tvm.compile(network.to_relax(), target=tvm.target.Target({"kind": "llvm"}))
    machine = relax.VirtualMachine(library, tvm.cpu())
    found = machine["main"](tvm.runtime.tensor(inputs["x"])).numpy()
    np.testing.assert_array_equal(found, network.reference(inputs)[0])


def test_the_network_itself_is_not_changed_by_folding():
    network = OnnxNetwork(shape_arithmetic(), name="net", batch=3)
    before = network.to_onnx()
    network.to_relax()
    assert network.to_onnx() == before
    assert "Shape" in operators(onnx.load_model_from_string(before or b""))


def test_a_model_with_nothing_to_fold_is_returned_unchanged():
    model = tiny_cnn()
    assert fold(model) is model


def test_neither_random_nor_large_results_are_folded():
    nodes = [
        helper.make_node("Constant", [], ["long"], value_ints=[1, 5000]),
        helper.make_node("ConstantOfShape", ["long"], ["zeros"]),
        helper.make_node("RandomNormalLike", ["x"], ["noise"]),
        helper.make_node("Constant", [], ["short"], value_ints=[2]),
        helper.make_node("RandomUniform", [], ["more"], shape=[2]),
        helper.make_node("Expand", ["x", "short"], ["wide"]),
        helper.make_node("Sum", ["wide", "noise", "more"], ["y"]),
        helper.make_node("Add", ["y", "zeros"], ["z"]),
    ]
    graph = helper.make_graph(
        nodes,
        "random",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [2]),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, None),
        ],
    )
    folded = fold(helper.make_model(graph, opset_imports=OPSETS, ir_version=8))
    kept = {"ConstantOfShape", "RandomNormalLike", "RandomUniform", "Expand", "Sum", "Add"}
    assert set(operators(folded)) == kept


def test_a_constant_that_is_an_output_stays_a_node():
    model = shape_arithmetic()
    model.graph.output.append(helper.make_tensor_value_info("target", TensorProto.INT64, [3]))
    folded = fold(bound(model))
    assert "Concat" in operators(folded)
