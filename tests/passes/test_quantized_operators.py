"""Networks that other tools quantized: integer kernels, with what ONNX Runtime computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic
from tvm import relax, te

import tvmtune
from quantize import cnn
from quantize.quantized_onnx import prepared, quantized
from tvmtune import api, host
from tvmtune.accuracy import relative_error
from tvmtune.bench.verify import allowed_errors
from tvmtune.dot_instructions import for_bytes
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.networks.zoo.graph_builder import GraphBuilder
from tvmtune.passes import quantized_operators, rounding
from tvmtune.passes.bindings import bindings
from tvmtune.passes.quantized_values import QuantizedValues
from tvmtune.runtime.library import Library

INTEGERS = bool(for_bytes(host.backend("cpu").make_target({}, None).target))
"""Whether this machine computes in integers at all."""
VNNI = {"kind": "llvm", "mcpu": "cascadelake"}
SIGNED, UNSIGNED = QuantType.QInt8, QuantType.QUInt8


def assert_within_a_step(path: Path, library: Library) -> None:
    """Of ONNX Runtime's outputs, computed without its integer kernels unless the file names them."""
    model = onnx.load(path)
    options = onnxruntime.SessionOptions()
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_DISABLE_ALL
    if any(node.op_type.startswith("QLinear") for node in model.graph.node):
        # Without VNNI they saturate, unless an optimization replaces their weights.
        options.graph_optimization_level = levels.ORT_ENABLE_EXTENDED
        options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(path, options)
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    last = {output: node for node in model.graph.node for output in node.output}
    for seed in (50, 51, 52):
        inputs = random_inputs(library.inputs, seed)
        outputs = zip(
            session.get_outputs(), library.run(inputs), session.run(None, inputs), strict=True
        )
        for output, got, wanted in outputs:
            node = last[output.name]
            assert node.op_type == "DequantizeLinear"
            assert np.abs(got - wanted).max() <= 1.001 * float(constants[node.input[1]])
            assert np.ptp(wanted) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "options"),
    [
        (cnn.residual(), {"activation_type": UNSIGNED, "per_channel": True}),
        (cnn.mixed(), {"activation_type": UNSIGNED, "per_channel": True}),
        (cnn.mixed(), {"activation_type": SIGNED}),
        (cnn.grouped(), {"activation_type": UNSIGNED, "per_channel": True}),
        (cnn.uneven(), {"activation_type": UNSIGNED, "per_channel": True}),
        (cnn.audio(), {"activation_type": UNSIGNED, "per_channel": True}),
        (cnn.forked(), {"activation_type": SIGNED, "per_channel": True}),
        (cnn.residual(), {"form": QuantFormat.QOperator, "activation_type": UNSIGNED}),
        (
            cnn.mixed(),
            {"form": QuantFormat.QOperator, "activation_type": UNSIGNED, "per_channel": True},
        ),
    ],
    ids=[
        "residual",
        "depthwise",
        "signed",
        "grouped",
        "uneven",
        "one dimension",
        "forked",
        "operators",
        "operators per channel",
    ],
)
def test_convolutions_and_products_of_quantized_networks_are_integer_kernels(
    network, options, tmp_path
):
    path = quantized(network, tmp_path, weight_type=SIGNED, **options)
    plan = api.plan(tvmtune.load(path), "cpu")
    products = [task.name for task in plan.tasks if "conv" in task.name or "matmul" in task.name]
    assert len(products) >= 4
    assert all("quantized" in name for name in products) == INTEGERS
    compiled = api.compile(plan, tmp_path / "lib.so")
    assert_within_a_step(path, Library.open(compiled.path))


@pytest.mark.slow
def test_products_of_dynamically_quantized_networks_are_integer_kernels(tmp_path):
    """Scales of activations follow from their values at run time."""
    path = tmp_path / "dynamic.onnx"
    # ONNX Runtime has no kernel for ConvInteger with signed weights.
    ready = prepared(cnn.residual(), tmp_path)
    quantize_dynamic(ready, path, per_channel=True, op_types_to_quantize=["MatMul", "Gemm"])
    network = tvmtune.load(path)
    plan = api.plan(network, "cpu")
    (product,) = [task.name for task in plan.tasks if "matmul" in task.name]
    assert ("quantized" in product) == INTEGERS
    library = Library.open(api.compile(plan, tmp_path / "lib.so").path)
    for seed in (50, 51):
        inputs = random_inputs(network.inputs, seed)
        (got,), (wanted,) = library.run(inputs), network.reference(inputs)
        assert relative_error(got, wanted) < 1e-5


@pytest.mark.slow
def test_the_check_allows_what_runtimes_differ_by(tmp_path):
    """The network rounds between its layers; all others are held to the usual tolerance."""
    path = quantized(cnn.residual(), tmp_path, activation_type=UNSIGNED)
    network = tvmtune.load(path)
    apart = max(relative_error(one, other) for (one,), (other,) in network.rounding_runs)
    assert [each.error for each in allowed_errors(network)] == [max(0.1, 2 * apart)]
    assert [each.error for each in allowed_errors(cnn.residual())] == [1e-4]


def test_halves_are_rounded_to_even(tmp_path):
    """As the standard says; other ways are off by a step."""
    x = np.array([-1.5, -0.5, 0.5, 1.5, 2.5, 1000.0, -1000.0], "float32")
    graph = helper.make_graph(
        [helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"])],
        "rounding",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [7])],
        [helper.make_tensor_value_info("y", TensorProto.INT8, [7])],
        [
            numpy_helper.from_array(np.float32(1), "scale"),
            numpy_helper.from_array(np.int8(10), "zero"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    compiled = api.compile(api.plan(OnnxNetwork(model, name="r"), "cpu"), tmp_path / "lib.so")
    (steps,) = Library.open(compiled.path).run({"x": x})
    assert steps.tolist() == [8, 10, 10, 12, 12, 127, -128]


@pytest.mark.parametrize("scale", [0.0235, 1e-39])
def test_a_quotient_is_rounded_as_a_division_gives_it(scale, tmp_path):
    """Averages of two bytes of this scale: half of them lie between two steps, where a product with the
    reciprocal may fall on the other side. The reciprocal of the smallest scale is infinite."""
    scale = np.float32(scale)
    x = np.concatenate([(np.arange(-255, 256) * scale) / np.float32(2), [0]]).astype("float32")
    graph = helper.make_graph(
        [helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"])],
        "rounding",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.INT8, x.shape)],
        [numpy_helper.from_array(scale, "scale"), numpy_helper.from_array(np.int8(0), "zero")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    compiled = api.compile(api.plan(OnnxNetwork(model, name="r"), "cpu"), tmp_path / "lib.so")
    (steps,) = Library.open(compiled.path).run({"x": x})
    np.testing.assert_array_equal(steps, np.clip(np.rint(x / scale), -128, 127))


@pytest.mark.slow
def test_weights_may_leave_no_room_for_their_zero_point(tmp_path):
    """uint8 weights around 120 are up to 135: all are shifted, and the data summed up in return."""
    path = quantized(cnn.residual(), tmp_path, activation_type=UNSIGNED, weight_type=UNSIGNED)
    plan = api.plan(tvmtune.load(path), "cpu")
    kernels = [task.name for task in plan.tasks if "conv2d" in task.name]
    assert all(("quantized" in name) == INTEGERS for name in kernels)
    compiled = api.compile(plan, tmp_path / "lib.so")
    assert_within_a_step(path, Library.open(compiled.path))


def test_a_product_with_a_bias_and_without_rounding_is_an_integer_kernel(tmp_path):
    """The scores of a classifier are floats."""
    rng = np.random.default_rng(0)
    arrays = {
        "x_scale": np.float32(0.02),
        "x_zero": np.uint8(120),
        "w": rng.integers(-127, 128, (24, 40), "int8"),
        "w_scale": rng.uniform(0.001, 0.01, 40).astype("float32"),
        "w_zero": np.zeros(40, "int8"),
    }
    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", "x_scale", "x_zero"], ["x_q"]),
            helper.make_node("DequantizeLinear", ["x_q", "x_scale", "x_zero"], ["x_f"]),
            helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["w_f"], axis=1),
            helper.make_node("MatMul", ["x_f", "w_f"], ["y"]),
        ],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 24])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 40])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    network = OnnxNetwork(model, name="product")
    plan = api.plan(network, "cpu")
    assert any("matmul_quantized" in task.name for task in plan.tasks) == INTEGERS
    library = Library.open(api.compile(plan, tmp_path / "lib.so").path)
    inputs = random_inputs(network.inputs, 3)
    (got,), (wanted,) = library.run(inputs), network.reference(inputs)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [0.0, float("inf"), float("nan")])
def test_unsound_scales_are_left_to_float_kernels(scale):
    rng = np.random.default_rng(0)
    arrays = {
        "x_scale": np.float32(scale),
        "w_scale": np.float32(0.01),
        "zero": np.int8(0),
        "w": rng.integers(-9, 9, (24, 40), "int8"),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "w_scale", "zero"], ["x_q"]),
        helper.make_node("DequantizeLinear", ["x_q", "x_scale", "zero"], ["x_f"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "zero"], ["w_f"]),
        helper.make_node("MatMul", ["x_f", "w_f"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 24])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 40])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    plan = api.plan(OnnxNetwork(model, name="product"), "cpu", attrs={"mcpu": "cascadelake"})
    assert all("quantized" not in task.name for task in plan.tasks)


def planned(
    nodes: list, arrays: dict, shape: list[int], dtype: int = TensorProto.FLOAT
) -> list[str]:
    """The tasks of a network of (5, 24) inputs, on a CPU with integer instructions."""
    graph = helper.make_graph(
        nodes,
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 24])],
        [helper.make_tensor_value_info("y", dtype, shape)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    plan = api.plan(OnnxNetwork(model, name="product"), "cpu", attrs={"mcpu": "cascadelake"})
    return [task.name for task in plan.tasks]


def product_nodes(*after: onnx.NodeProto) -> list[onnx.NodeProto]:
    """A quantized product, to ``p``, and what is behind it, to ``s``, rounded."""
    return [
        helper.make_node("QuantizeLinear", ["x", "x_scale", "zero"], ["x_q"]),
        helper.make_node("DequantizeLinear", ["x_q", "x_scale", "zero"], ["x_f"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "zero"], ["w_f"]),
        helper.make_node("MatMul", ["x_f", "w_f"], ["p"]),
        *after,
        helper.make_node("QuantizeLinear", ["s", "y_scale", "zero"], ["y"]),
    ]


def product_arrays(**others: np.ndarray | np.generic) -> dict:
    w = np.random.default_rng(0).integers(-9, 9, (24, 40), "int8")
    scales = dict.fromkeys(("x_scale", "w_scale", "y_scale"), np.float32(0.01))
    return {**scales, "zero": np.int8(0), "w": w, **others}


@pytest.mark.parametrize("operator", ["Add", "Max"])
@pytest.mark.parametrize(
    ("shape", "is_kernel"), [((1,), True), ((1, 1), True), ((1, 1, 1), False), ((1,) * 4, False)]
)
def test_constants_of_a_higher_rank_keep_the_shape_of_their_result(operator, shape, is_kernel):
    """A kernel would return that of the product."""
    nodes = product_nodes(helper.make_node(operator, ["p", "b"], ["s"]))
    arrays = product_arrays(b=np.full(shape, 0.5, "float32"))
    extents = list(np.broadcast_shapes((5, 40), shape))
    names = planned(nodes, arrays, extents, TensorProto.INT8)
    # A product that is not rounded is a kernel of its own.
    assert any("add" in n or "max" in n for n in names) != is_kernel


@pytest.mark.parametrize("scale", [1e-30, 1e-44])
def test_factors_that_leave_float32_are_left_to_float_kernels(scale):
    nodes = product_nodes(helper.make_node("Relu", ["p"], ["s"]))
    small = np.float32(scale)
    assert any("matmul_quantized" in n for n in planned(nodes, product_arrays(), [5, 40], 3))
    tiny = product_arrays(x_scale=small, w_scale=small)
    assert not any("quantized" in n for n in planned(nodes, tiny, [5, 40], 3))


def quantized_constant(build: Any) -> tvm.IRModule:
    """A program of (4,) floats ``x`` without a network; ``build(x)`` returns the result."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            output = builder.emit_output(build(x))
        builder.emit_func_output(output)
    return builder.get()


@pytest.mark.parametrize(
    ("kernels", "added"),
    [((1, (8, 8)), 1), (((8, 8), 1), 1), (((1, 8), (8, 1)), 0)],
    ids=["second-is-broadcast", "first-is-broadcast", "both-are"],
)
def test_layers_of_other_shapes_than_their_sum_store_bytes(kernels, added, tmp_path):
    g = GraphBuilder("two")
    x = g.input("data", (1, 16, 8, 8))
    one, other = (
        g.conv_bn(x, name, 16, kernel)
        for name, kernel in zip(("one", "other"), kernels, strict=True)
    )
    total = replace(g.add(one, other, "sum"), shape=x.shape)
    network = OnnxNetwork(g.model(g.conv_bn(g.relu(total), "last", 24, 1)), name="two")
    path = quantized(network, tmp_path)
    layers = [
        task
        for task in api.plan(tvmtune.load(path), "cpu", attrs={"mcpu": "cascadelake"}).tasks
        if "conv2d" in task.name
    ]
    assert len(layers) == 3
    assert sum("add" in task.name for task in layers) == added
    stored = [task.args[-1].dtype for task in layers]
    assert sorted(stored) == ["float32", "uint8", "uint8"], "the last layer is the network's output"


def test_one_scale_with_several_zero_points_is_read():
    scale, zeros = relax.const(0.5, "float32"), relax.const(np.int8([0, 1, 2, 3]))
    constant = relax.op.dequantize(relax.const(np.int8([5, 6, 7, 8])), scale, zeros, axis=0)
    mod = quantized_constant(lambda x: relax.op.add(x, constant))
    add = bindings(mod)[-1].value
    values = QuantizedValues(mod)
    np.testing.assert_array_equal(values.constant(add.args[1]), [2.5] * 4)


def test_weights_of_types_that_numpy_lacks_are_left_as_they_are():
    scale, zero = relax.const(0.5, "float32"), relax.const(0, "int32")
    small = relax.const(np.ones((4, 4), ml_dtypes.float8_e4m3fn))

    def product(x: Any) -> Any:
        step = relax.op.quantize(x, scale, zero, axis=0, out_dtype="uint8")
        data = relax.op.dequantize(step, scale, zero, axis=0)
        none = relax.const(0, "float16")  # the type that TVM wants for such weights
        weights = relax.op.dequantize(small, scale, none, axis=0)
        return relax.op.matmul(data, weights)

    mod = quantized_constant(product)
    assert quantized_operators.lower(mod, for_bytes(VNNI)) is mod


def test_bytes_of_several_zero_points_are_no_operand():
    scale, zeros = relax.const(0.5, "float32"), relax.const(np.int8([0, 1, 2, 3]))
    mod = quantized_constant(lambda x: relax.op.quantize(x, scale, zeros, 0, "int8"))
    assert quantized_operators.lower(mod, for_bytes(VNNI)) is mod


def test_values_above_int32_become_its_largest():
    """2**31 - 1 itself is no float32."""
    x = te.placeholder((4,), "float32", name="x")
    zero = te.placeholder((1,), "int32", name="zero")
    steps = rounding.quantize(x, None, zero, 0, "int32")
    mod = tvm.IRModule({"main": te.create_prim_func([x, zero, steps])})
    values = np.float32([1e10, 2**31, -(2**31), -1e10])
    got = tvm.runtime.tensor(np.zeros(4, "int32"))
    arguments = (values, np.zeros(1, "int32"))
    compiled = tvm.compile(mod, tvm.target.Target({"kind": "llvm"}))
    compiled["main"](*map(tvm.runtime.tensor, arguments), got)
    assert (got.numpy()[:2] >= 2**31 - 128).all()
    assert (got.numpy()[2:] == -(2**31)).all()


@pytest.mark.parametrize(("zeros", "is_kernel"), [((74, 74), True), ((0, 255), False)])
def test_weights_that_no_shift_brings_into_bytes_stay_in_float(zeros, is_kernel):
    """Zero points of inputs, not of outputs."""
    arrays = product_arrays(
        w=np.random.default_rng(0).integers(0, 256, (24, 40), "uint8"),
        w_scale=np.full(24, 0.01, "float32"),
        w_zero=np.resize(np.array(zeros, "uint8"), 24),
    )
    nodes = product_nodes(helper.make_node("Relu", ["p"], ["s"]))
    nodes[2] = helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["w_f"], axis=0)
    names = planned(nodes, arrays, [5, 40], TensorProto.INT8)
    assert any("matmul_quantized" in name for name in names) == is_kernel
