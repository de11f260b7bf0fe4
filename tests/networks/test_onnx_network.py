"""ONNX models: specs, reference, hashes, Relax."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models import one_node, tiny_cnn, tiny_encoder
from tvmtune import api
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.passes.bindings import bindings, operator_of
from tvmtune.types import TensorSpec


def run_in_tvm(network: OnnxNetwork, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    import tvm
    from tvm import relax

    library = tvm.compile(network.to_relax(), target=tvm.target.Target({"kind": "llvm"}))
    machine = relax.VirtualMachine(library, tvm.cpu())
    arguments = [tvm.runtime.tensor(inputs[spec.name]) for spec in network.inputs]
    result = machine["main"](*arguments)
    return [t.numpy() for t in (result if len(network.outputs) > 1 else [result])]


def two_inputs() -> onnx.ModelProto:
    """``b.1`` (3,) and ``a`` (2, 3) -> ``a - b.1``: the order of the file is not the alphabet's."""
    node = helper.make_node("Sub", ["a", "b.1"], ["y"], name="difference")
    inputs = [
        helper.make_tensor_value_info("b.1", TensorProto.FLOAT, [3]),
        helper.make_tensor_value_info("a", TensorProto.FLOAT, [2, 3]),
        helper.make_tensor_value_info("unused", TensorProto.INT64, []),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])]
    graph = helper.make_graph([node], "two", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.sweep
@pytest.mark.parametrize("make", [tiny_cnn, tiny_encoder, two_inputs])
def test_tvm_computes_what_the_reference_computes(make):
    network = OnnxNetwork(make(), name="tiny")
    inputs = random_inputs(network.inputs, seed=1)
    expected = network.reference(inputs)
    found = run_in_tvm(network, inputs)
    assert len(found) == len(expected) == len(network.outputs)
    for spec, y, ref in zip(network.outputs, found, expected, strict=True):
        assert y.shape == ref.shape == spec.shape
        assert np.abs(y - ref).max() <= 1e-4 * np.abs(ref).max()


def test_of_several_reshapes_only_the_last_is_computed():
    nodes = [
        helper.make_node("Reshape", ["x", "one"], ["a"]),
        helper.make_node("Reshape", ["a", "two"], ["b"]),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    shapes = {"one": np.array([4, 12]), "two": np.array([0, 3, -1])}
    graph = helper.make_graph(
        nodes,
        "reshapes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 6, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 3, 4])],
        [numpy_helper.from_array(array, name) for name, array in shapes.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    network = OnnxNetwork(helper.make_model(graph, opset_imports=opsets, ir_version=8), name="net")
    called = [operator_of(each.value) for each in bindings(api.plan(network).prepared.graph)]
    assert called == ["reshape", "nn.relu"]


def test_inputs_keep_the_names_and_the_order_of_the_file():
    assert OnnxNetwork(two_inputs(), name="net").inputs == (
        TensorSpec("b.1", (3,), "float32"),
        TensorSpec("a", (2, 3), "float32"),
        TensorSpec("unused", (), "int64"),
    )


def test_weights_listed_as_inputs_are_not_inputs():
    model = tiny_cnn()
    for tensor in model.graph.initializer:
        info = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        model.graph.input.append(info)
    network = OnnxNetwork(model, name="old")
    assert [spec.name for spec in network.inputs] == ["data"]
    network.to_relax()


def test_the_reference_works_without_onnxruntime(monkeypatch: pytest.MonkeyPatch):
    network = OnnxNetwork(tiny_encoder(), name="tiny")
    inputs = random_inputs(network.inputs, seed=0)
    expected = network.reference(inputs)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    for y, ref in zip(network.reference(inputs), expected, strict=True):
        np.testing.assert_allclose(y, ref, atol=1e-5)


def test_the_reference_checks_its_inputs():
    network = OnnxNetwork(tiny_cnn(), name="tiny")
    with pytest.raises(UsageError, match="1x3x8x8 float32.*1x3x32x32 float32"):
        network.reference({"data": np.zeros((1, 3, 8, 8), np.float32)})


def test_output_shapes_that_inference_misses_are_measured():
    model = one_node("Reshape", shape=(2, 6))
    half = numpy_helper.from_array(np.array([2.0, 1.5], np.float32), "half_shape")
    model.graph.initializer.append(half)
    # The target shape is computed in floating point, which shape inference does not follow.
    nodes = [
        helper.make_node("Mul", ["half_shape", "half_shape"], ["float_shape"]),
        helper.make_node("Ceil", ["float_shape"], ["whole_shape"]),
        helper.make_node("Cast", ["whole_shape"], ["shape"], to=TensorProto.INT64),
        model.graph.node[0],
    ]
    nodes[-1].input.append("shape")
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    assert OnnxNetwork(model, name="net").outputs == (TensorSpec("y", (4, 3), "float32"),)


def test_a_shape_that_depends_on_the_data_is_refused():
    model = one_node("NonZero", shape=(4, 5))
    model.graph.node[0].input[0] = "positive"
    model.graph.node.insert(0, helper.make_node("Relu", ["x"], ["positive"], name="relu"))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    with pytest.raises(TvmtuneError, match="output 'y' of net depends on the data"):
        OnnxNetwork(model, name="net")


def test_inputs_other_than_tensors_are_refused():
    model = one_node("SequenceLength")
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    model.graph.input[0].type.CopyFrom(helper.make_sequence_type_proto(tensor))
    with pytest.raises(TvmtuneError, match="'x' of net is of the type sequence"):
        OnnxNetwork(model, name="net")


def test_local_functions_are_inlined():
    model = one_node("Double", domain="mine")
    body = [helper.make_node("Add", ["v", "v"], ["w"])]
    opsets = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("mine", "Double", ["v"], ["w"], body, opsets))
    network = OnnxNetwork(model, name="net")
    inputs = random_inputs(network.inputs, seed=0)
    np.testing.assert_allclose(run_in_tvm(network, inputs)[0], 2 * inputs["x"])


def test_standard_operators_that_the_importer_lacks_are_expanded():
    network = OnnxNetwork(one_node("Celu", alpha=2.0), name="net")
    inputs = random_inputs(network.inputs, seed=0)
    expected = network.reference(inputs)[0]
    np.testing.assert_allclose(run_in_tvm(network, inputs)[0], expected, atol=1e-5)


def import_failure(model: onnx.ModelProto) -> str:
    with pytest.raises(TvmtuneError) as raised:
        OnnxNetwork(model, name="net.onnx").to_relax()
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_an_operator_of_onnxruntime_is_named_with_its_node():
    pytest.importorskip("onnxruntime", reason="only ONNX Runtime finds the shape of y")
    model = one_node("CDist", domain="com.microsoft", shape=(3, 3))
    model.graph.node[0].input.append("x")
    text = import_failure(model)
    assert text.startswith(
        "node 'the_node' (com.microsoft.CDist, opset 1) of net.onnx is not supported"
    )
    assert "before ONNX Runtime's optimizer" in text


def test_a_standard_operator_without_converter_is_named_with_its_node():
    text = import_failure(one_node("Det", shape=(2, 3, 3)))
    assert "node 'the_node' (Det, opset 17) of net.onnx is not supported" in text


def test_a_node_without_a_name_is_named_by_its_output():
    model = one_node("Det", shape=(2, 3, 3))
    model.graph.node[0].name = ""
    assert "node '-> y' (Det" in import_failure(model)


def test_a_failing_conversion_is_named_with_its_node(capsys: pytest.CaptureFixture[str]):
    model = one_node("MaxPool", shape=(1, 3, 8, 8), kernel_shape=[2, 2])
    model.graph.node[0].output.append("indices")  # the converter of MaxPool makes none
    text = import_failure(model)
    assert "node 'the_node' (MaxPool, opset 17) of net.onnx cannot be imported" in text
    assert capsys.readouterr().out == ""


def test_an_operator_that_nothing_can_run_is_named_with_its_node():
    with pytest.raises(TvmtuneError, match=r"node 'the_node' \(mine.Relu, opset 1\) of net"):
        OnnxNetwork(one_node("Relu", domain="mine"), name="net")


def test_the_structure_hash_ignores_names_and_weights():
    first, second = OnnxNetwork(tiny_cnn(), name="a"), OnnxNetwork(tiny_cnn(seed=1), name="b")
    assert first.structure_hash == second.structure_hash
    assert first.weights_hash != second.weights_hash
    renamed = tiny_cnn()
    for node in renamed.graph.node:
        node.name = f"other-{node.name}"
        node.input[:] = [f"other-{name}" for name in node.input]
        node.output[:] = [f"other-{name}" for name in node.output]
    graph = renamed.graph
    for named in (*graph.input, *graph.output, *graph.initializer):
        named.name = f"other-{named.name}"
    third = OnnxNetwork(renamed, name="c")
    assert third.structure_hash == first.structure_hash
    assert third.weights_hash == first.weights_hash


def test_the_structure_hash_sees_shapes_attributes_and_edges():
    def variant(change) -> str:
        model = tiny_encoder()
        change({node.name: node for node in model.graph.node}, model.graph)
        return OnnxNetwork(model, name="net").structure_hash

    def other_epsilon(nodes, graph):
        nodes["norm1_node"].attribute[1].f = 1e-3

    def other_edge(nodes, graph):
        nodes["transformed_node"].input[0] = "attended"

    def other_constant(nodes, graph):
        index = next(i for i, w in enumerate(graph.initializer) if w.name == "zero")
        graph.initializer[index].CopyFrom(numpy_helper.from_array(np.array(1, "int64"), "zero"))

    plain = variant(lambda nodes, graph: None)
    assert plain == OnnxNetwork(tiny_encoder(), name="again").structure_hash
    hashes = [variant(other_epsilon), variant(other_edge), variant(other_constant)]
    hashes.append(OnnxNetwork(tiny_encoder(2, 8), name="batch").structure_hash)
    assert len({plain, *hashes}) == 5
