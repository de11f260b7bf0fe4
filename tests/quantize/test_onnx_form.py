"""``--dtype int8`` on CPUs with integer instructions: the quantized ONNX form of a float network."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper, numpy_helper

from quantize import cnn
from tvmtune import api, host, networks
from tvmtune.accuracy import relative_error
from tvmtune.bench.verify import make_check, run_check
from tvmtune.dot_instructions import for_bytes
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.int8 import Int8Network
from tvmtune.networks.onnx import quantize
from tvmtune.networks.onnx.integer_layers import IntegerLayers
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.networks.onnx.quantize import Range
from tvmtune.networks.quantization import Calibration
from tvmtune.networks.zoo.graph_builder import GraphBuilder
from tvmtune.runtime.library import Library

pytestmark = pytest.mark.filterwarnings("ignore:.*is calibrated with.*")

VNNI = {"mcpu": "cascadelake"}
INTEGERS = for_bytes(host.backend("cpu").make_target({}, None).target) is not None
"""Whether this machine has such a CPU."""


def samples(network: OnnxNetwork, count: int = 8, factor: float = 1.0) -> list[dict]:
    drawn = [random_inputs(network.inputs, seed) for seed in range(100, 100 + count)]
    return [{name: array * np.float32(factor) for name, array in each.items()} for each in drawn]


def stacked(runs: list[dict]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([run[name] for run in runs]) for name in runs[0]}


def transformer() -> OnnxNetwork:
    """A product with a bias, an activation in several operators, normalization and a residual sum."""
    g = GraphBuilder("transformer")
    x = g.input("data", (1, 8, 32))
    rng = np.random.default_rng(0)
    names = []
    for number, (rows, columns) in enumerate(((32, 48), (48, 32))):
        weights = rng.standard_normal((rows, columns)) / np.sqrt(rows)
        names.append(g.weight(f"w{number}", weights.astype("float32")))
    h = g.node("MatMul", "first", [x.name, names[0]])
    h = g.node("Add", "biased", [h, g.weight("b", rng.standard_normal(48).astype("float32"))])
    h = g.node("Mul", "gated", [h, g.node("Sigmoid", "gate", [h])])
    h = g.node("MatMul", "second", [h, names[1]])
    h = g.node("Add", "sum", [h, x.name])
    return OnnxNetwork(g.model(type(x)(h, x.shape, x.moments)), name="transformer")


@pytest.mark.parametrize("network", [cnn.residual(), cnn.mixed(), transformer()])
def test_convolutions_and_products_are_integer_kernels(network):
    plan = api.plan(Int8Network(network), "cpu", attrs=VNNI)
    products = [task.name for task in plan.tasks if "conv2d" in task.name or "matmul" in task.name]
    assert products
    assert all("quantized" in name for name in products)


def test_sums_and_pooling_between_layers_read_and_write_bytes():
    plan = api.plan(Int8Network(cnn.residual()), "cpu", attrs=VNNI)
    (pool,) = [task for task in plan.tasks if "max_pool" in task.name]
    assert {arg.dtype for arg in pool.args} == {"uint8"}
    (sums,) = [task for task in plan.tasks if "_add_quantize" in task.name]
    assert "float32" not in {arg.dtype for arg in sums.args if len(arg.shape) > 2}


def test_a_sum_is_computed_by_one_convolution_and_reads_the_bytes_of_the_other():
    """Its own values are in registers, where bytes would have to be narrowed and widened."""
    g = GraphBuilder("two")
    x = g.input("data", (1, 16, 8, 8))
    total = g.add(g.conv_bn(x, "one", 16, 3, pad=1), g.conv_bn(x, "other", 16, 1), "sum")
    network = OnnxNetwork(g.model(g.conv_bn(g.relu(total), "last", 24, 1)), name="two")
    plan = api.plan(Int8Network(network), "cpu", attrs=VNNI)
    convolutions = [task for task in plan.tasks if "conv2d" in task.name]
    (sums,) = [task for task in convolutions if "_add_quantize" in task.name]
    assert len(convolutions) == 3
    images = [arg.dtype for arg in sums.args if len(arg.shape) == 4 and arg.shape[1:3] == (8, 8)]
    assert images == ["uint8"] * 3, "the input, the other term, and the sum"


def test_the_padding_of_an_image_is_copied_once_and_that_of_others_per_tile():
    """A row of tiles shares an image's few channels with its neighbors."""
    g = GraphBuilder("image")
    x = g.relu(g.conv_bn(g.input("data", (1, 3, 16, 16)), "first", 16, 3, pad=1))
    network = OnnxNetwork(g.model(g.conv_bn(x, "second", 16, 3, pad=1)), name="image")
    plan = api.plan(Int8Network(network), "cpu", attrs=VNNI)
    target = tvm.target.Target(plan.device.target)
    copied_first = {}
    for task in plan.tasks:
        if "conv2d" in task.name:
            (direct,) = task.implementations
            script = direct.space.default(direct.mod, target).mod.script()
            weights = task.args[1].shape
            copied_first[weights] = script.index('sblock("pad")') < script.rindex("T.parallel")
    assert copied_first == {(1, 3, 3, 1, 16, 4): True, (1, 3, 3, 4, 16, 4): False}


@pytest.mark.slow
def test_tasks_do_not_depend_on_calibration():
    """So a log can be resumed, and compiled from, with other calibration data."""
    for network in (cnn.residual(), cnn.mixed(), transformer()):
        plans = [
            api.plan(Int8Network(network), "cpu", attrs=VNNI, calibration=data)
            for data in (None, stacked(samples(network, factor=3.0)))
        ]
        keys = [[task.key for task in plan.tasks] for plan in plans]
        assert keys[0] == keys[1]
        assert plans[0].network.to_onnx() != plans[1].network.to_onnx()


@pytest.mark.slow
@pytest.mark.skipif(not INTEGERS, reason="needs a CPU with integer instructions")
@pytest.mark.parametrize("network", [cnn.residual(), cnn.mixed(), cnn.forked(), transformer()])
def test_a_library_computes_what_onnx_runtime_computes(network, tmp_path):
    plan = api.plan(Int8Network(network), "cpu")
    library = Library.open(api.compile(plan, tmp_path / "lib.so").path)
    assert run_check(library, make_check(plan.network)).passed
    for seed in (1, 2):
        inputs = random_inputs(plan.network.inputs, seed)
        for got, wanted in zip(library.run(inputs), plan.network.reference(inputs), strict=True):
            assert relative_error(got, wanted) < 0.03  # a few steps of 1/255
            assert np.ptp(wanted) > 0


@pytest.mark.parametrize("network", [cnn.residual(), cnn.mixed(), cnn.forked(), transformer()])
def test_the_quantized_form_stays_near_the_float_network(network):
    quantized = Int8Network(network).calibrated(samples(network))
    inputs = random_inputs(network.inputs, 1)
    for got, wanted in zip(quantized.reference(inputs), network.reference(inputs), strict=True):
        assert relative_error(got, wanted) < 0.1
        assert not np.array_equal(got, wanted)


def test_a_source_restores_the_network_without_its_calibration_data(tmp_path):
    (tmp_path / "cnn.onnx").write_bytes(cnn.residual().to_onnx())
    network = networks.load(tmp_path / "cnn.onnx", dtype="int8")
    quantized = network.calibrated(samples(network))
    again = networks.reload(quantized.source)
    assert again.to_onnx() == quantized.to_onnx() != network.to_onnx()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"ranges": {"data": [0.0]}}, "lowest and a highest"),
        ({"ranges": {"data": [0.0, "x"]}}, "other than a number"),
        ({"ranges": {}}, "lacks tensor"),
        ({"ranges": 5}, "not an object"),
    ],
)
def test_damaged_ranges_are_named(damage, message, tmp_path):
    (tmp_path / "cnn.onnx").write_bytes(cnn.residual().to_onnx())
    source = networks.load(tmp_path / "cnn.onnx", dtype="int8").source
    with pytest.raises(TvmtuneError, match=message):
        networks.reload(source | {"quantization": {"samples": 1} | damage}).to_onnx()


@pytest.mark.parametrize(
    ("bounds", "scale", "zero"),
    [
        ((-1.0, 1.55), 0.01, 100),
        ((0.0, 2.55), 0.01, 0),
        ((1.0, 2.55), 0.01, 0),
        ((-2.55, -1.0), 0.01, 255),
        ((0.0, 0.0), 1.0, 0),
    ],
)
def test_zero_is_exact_in_every_range(bounds, scale, zero):
    steps, point = Range(*bounds).steps()
    assert steps == pytest.approx(scale)
    assert point == zero


def test_weights_are_within_half_a_step_of_each_output():
    model = quantize.prepared(cnn.residual().to_onnx(), "cnn")
    found = IntegerLayers(model)
    written = quantize.quantize(model, dict.fromkeys(found.tensors.values(), Range(-1.0, 1.0)))
    before = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    after = {t.name: numpy_helper.to_array(t) for t in written.graph.initializer}
    makers = {name: node for node in written.graph.node for name in node.output}
    assert len(found.layers) == 7
    for layer in found.layers:
        stored = makers[makers[layer.node_output].input[1]]
        weights, scales = after[stored.input[0]], after[stored.input[1]]
        assert weights.dtype == np.int8
        assert len(scales) == weights.shape[layer.axis]
        shape = [1] * weights.ndim
        shape[layer.axis] = -1
        difference = weights * scales.reshape(shape) - before[layer.weight]
        assert (np.abs(difference) <= 0.501 * scales.reshape(shape)).all()


def test_channels_of_tiny_weights_keep_their_bias():
    """int32 holds it in steps of the products, which must not be too fine for it."""
    graph = helper.make_graph(
        [helper.make_node("Conv", ["data", "w", "b"], ["y"])],
        "tiny",
        [helper.make_tensor_value_info("data", onnx.TensorProto.FLOAT, [1, 4, 4, 4])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 3, 4, 4])],
        [
            numpy_helper.from_array(
                np.float32([1e-20, 0, 1]).reshape(3, 1, 1, 1) * np.ones((3, 4, 1, 1), "f"), "w"
            ),
            numpy_helper.from_array(np.float32([5, 7, 0]), "b"),
        ],
    )
    opset = [helper.make_opsetid("", 17)]
    network = OnnxNetwork(helper.make_model(graph, opset_imports=opset, ir_version=8), name="tiny")
    quantized = Int8Network(network).calibrated(samples(network))
    inputs = random_inputs(network.inputs, 1)
    (got,), (wanted,) = quantized.reference(inputs), network.reference(inputs)
    assert np.abs(got - wanted).max() < 0.1


def test_layers_without_an_integer_kernel_stay_in_float():
    """Transposed convolutions, and those with many groups that fill no instruction."""
    found = IntegerLayers(quantize.prepared(cnn.decoder().to_onnx(), "decoder"))
    assert [layer.operator for layer in found.layers] == ["Conv", "Conv"]
    g = GraphBuilder("grouped")
    x = g.conv_bn(g.input("data", (1, 36, 8, 8)), "grouped", 36, 3, pad=1, groups=12)
    network = OnnxNetwork(g.model(x), name="grouped")
    with pytest.raises(TvmtuneError, match="no layer of grouped can be computed in int8"):
        Int8Network(network).calibrated(samples(network))


def test_networks_above_what_the_format_holds_are_refused(monkeypatch):
    network = cnn.mixed()
    monkeypatch.setattr(OnnxNetwork, "to_onnx", lambda self: None)
    with pytest.raises(
        UsageError, match="below 2 GiB on this CPU: quantize cnn with the tools of ONNX Runtime"
    ):
        api.plan(Int8Network(network), "cpu", attrs=VNNI)


@pytest.mark.parametrize(
    ("network", "layers"), [(cnn.grouped(), 8), (cnn.uneven(), 4), (cnn.audio(), 4)]
)
def test_convolutions_in_groups_and_in_one_dimension_are_layers(network, layers):
    assert len(layers_of(network)) == layers
    quantized = Int8Network(network).calibrated(samples(network))
    plan = api.plan(quantized, "cpu", attrs=VNNI)
    kernels = [each.name for each in plan.tasks if "conv" in each.name or "matmul" in each.name]
    assert len(kernels) >= layers - 2, "layers of equal shapes share a task"
    assert all("quantized" in name for name in kernels)


def test_weights_stay_in_integers_in_any_opset():
    """onnx's evaluator, which folds constants, can dequantize from opset 19 on."""
    model = onnx.load_model_from_string(transformer().to_onnx())
    model.opset_import[0].version = 20
    network = OnnxNetwork(model, name="later")
    plan = api.plan(Int8Network(network), "cpu", attrs=VNNI)
    assert sum("matmul_quantized" in task.name for task in plan.tasks) == 2


@pytest.mark.parametrize("network", [cnn.mixed(), transformer()])
def test_the_reference_is_nearly_the_same_without_onnx_runtime(network, monkeypatch):
    with_it = Int8Network(network).calibrated(samples(network))
    inputs = random_inputs(network.inputs, 1)
    wanted = with_it.reference(inputs)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    without = Int8Network(network).calibrated(samples(network))
    for got, other in zip(without.reference(inputs), wanted, strict=True):
        assert relative_error(got, other) < 0.03
    assert len(without.rounding_runs) == 2
    for one, other in without.rounding_runs:
        for got, moved in zip(one, other, strict=True):
            assert relative_error(got, moved) < 0.1


def test_operators_before_scales_per_channel_are_converted():
    model = onnx.load_model_from_string(transformer().to_onnx())
    model.opset_import[0].version = 11
    assert quantize.prepared(model.SerializeToString(), "old").opset_import[0].version == 13


def test_an_opset_that_cannot_be_converted_is_named():
    model = onnx.load_model_from_string(transformer().to_onnx())
    model.opset_import[0].version = 12
    model.graph.node[0].op_type = "Unheard"
    with pytest.raises(UsageError, match="opset 12, --dtype int8 needs 13"):
        quantize.prepared(model.SerializeToString(), "old")


def products(*nodes: onnx.NodeProto, **weights: np.ndarray) -> OnnxNetwork:
    """Of a (4, 4) input ``data``, to ``y``; of the type of the weights ``w``."""
    dtype = helper.np_dtype_to_tensor_dtype(weights["w"].dtype)
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("data", dtype, [4, 4])],
        [helper.make_tensor_value_info("y", dtype, [4, 4])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    return OnnxNetwork(helper.make_model(graph, opset_imports=opset, ir_version=8), name="products")


def layers_of(network: OnnxNetwork) -> list[str]:
    model = quantize.prepared(network.to_onnx(), network.name)
    return [layer.name for layer in IntegerLayers(model).layers]


@pytest.mark.parametrize(
    ("shape", "is_layer"),
    [((), True), ((1,), True), ((4,), True), ((1, 4), True), ((4, 1), False), ((4, 4), False)],
)
def test_a_gemm_whose_bias_differs_by_row_stays_in_float(shape, is_layer):
    rng = np.random.default_rng(0)
    w, c = (np.asarray(rng.standard_normal(each), "float32") for each in ((4, 4), shape))
    gemm = helper.make_node("Gemm", ["data", "w", "c"], ["h"], name="gemm")
    product = helper.make_node("MatMul", ["h", "w"], ["y"], name="product")
    network = products(gemm, product, w=w, c=c)
    assert layers_of(network) == (["gemm", "product"] if is_layer else ["product"])
    inputs = random_inputs(network.inputs, 1)
    (got,) = Int8Network(network).calibrated(samples(network)).reference(inputs)
    (wanted,) = network.reference(inputs)
    assert relative_error(got, wanted) < 0.1


@pytest.mark.parametrize("dtype", ["int32", "float64"])
def test_products_of_other_types_than_float32_are_no_layers(dtype):
    product = helper.make_node("MatMul", ["data", "w"], ["y"], name="product")
    assert layers_of(products(product, w=np.ones((4, 4), dtype))) == []
    assert layers_of(products(product, w=np.ones((4, 4), "float32"))) == ["product"]


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (("a", "b", "c"), ["a", "b", "c"]),
        (("", "", "c"), ["h", "i", "c"]),
        (("a", "a", "c"), ["h", "i", "c"]),
        (("a", "a", "h"), ["h", "i", "y"]),
        (("h", "i", "y"), ["h", "i", "y"]),
    ],
)
def test_each_layer_has_a_name_of_its_own(names, wanted):
    """Those of nodes may be empty or equal; those of results are not."""
    places = ("data", "h", "i", "y")
    nodes = [
        helper.make_node("MatMul", [places[n], "w"], [places[n + 1]], name=name)
        for n, name in enumerate(names)
    ]
    network = products(*nodes, w=np.eye(4, dtype="float32"))
    assert layers_of(network) == wanted
    options = Calibration(skip_layers=(wanted[1],))
    quantized = Int8Network(network, options=options).calibrated(samples(network))
    assert quantized.source["quantization"]["skipped"] == [wanted[1]]
    assert [layer["name"] for layer in quantized.source["quantization"]["layers"]] == wanted
