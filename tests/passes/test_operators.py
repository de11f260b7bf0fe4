"""Every operator that the importer supports gives ONNX Runtime's results after the whole pipeline.

Models of a few nodes each, some of several independent operators, because building takes longer than
running. Networks with convolutions are tested in both layouts.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from kernels import error, run_network
from tvmtune import api
from tvmtune.errors import TvmtuneError
from tvmtune.library.export import build
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.onnx.network import OnnxNetwork

RNG = np.random.RandomState(0)


class Graph:
    """A model built node by node: ``g.Relu(x)`` appends a node and returns its output."""

    def __init__(self, opset: int = 21) -> None:
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.weights: list[onnx.TensorProto] = []

    def input(self, *shape: int, dtype: int = TensorProto.FLOAT) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def weight(self, *shape: int) -> str:
        return self.const(RNG.standard_normal(shape) / np.sqrt(np.prod(shape[1:])), "float32")

    def const(self, value: Any, dtype: str = "int64") -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def __getattr__(self, operator: str) -> Any:
        def append(*inputs: str, outputs: int = 1, **attributes: Any) -> Any:
            name = f"{operator}{len(self.nodes)}"
            names = [f"{name}_{i}" for i in range(outputs)]
            node = helper.make_node(operator, list(inputs), names, name=name, **attributes)
            self.nodes.append(node)
            return names[0] if outputs == 1 else names

        return append

    def network(self, *outputs: str) -> OnnxNetwork:
        infos = [helper.make_tensor_value_info(o, TensorProto.UNDEFINED, None) for o in outputs]
        graph = helper.make_graph(self.nodes, "operators", self.inputs, infos, self.weights)
        opset = helper.make_opsetid("", self.opset)
        return OnnxNetwork(
            helper.make_model(graph, opset_imports=[opset], ir_version=10), name="operators"
        )


TARGET = os.environ.get("TVMTUNE_TEST_TARGET", "cpu")
"""Set by the tests in tests/opencl."""


def assert_correct(network: OnnxNetwork, layout: str = "NHWC", **inputs: np.ndarray) -> api.Plan:
    plan = api.plan(network, TARGET, layout=layout)
    feed = random_inputs(network.inputs) | inputs
    lowered = plan.backend.lower(plan.prepared, {}, plan.device)
    plan.backend.serve_init()
    computed = run_network(build(lowered, plan.device), network, feed, plan.device.runtime)
    for spec, y, ref in zip(network.outputs, computed, network.reference(feed), strict=True):
        assert y.dtype == ref.dtype, spec.name
        if ref.dtype.kind == "f":
            assert error(y, ref) <= 1e-5, spec.name
        else:
            assert np.array_equal(y, ref), spec.name
    return plan


LAYOUTS = pytest.mark.parametrize("layout", ["NHWC", "NCHW"])


def between_convolutions(operator: Any, rank: int = 2, opset: int = 21) -> OnnxNetwork:
    """A convolution, ``operator`` applied to its output, and another convolution."""
    g = Graph(opset)
    extents = (9, 10, 7)[:rank]
    x = g.input(2, 4, *extents)
    x = g.Conv(x, g.weight(8, 4, *[3] * rank), g.weight(8), pads=[1] * 2 * rank)
    y = operator(g, x)
    return g.network(g.Conv(y, g.weight(6, 8, *[1] * rank)))


POOLS = {
    "max": lambda g, x: g.MaxPool(x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    "max-ceil": lambda g, x: g.MaxPool(x, kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1),
    "max-dilated": lambda g, x: g.MaxPool(x, kernel_shape=[2, 3], dilations=[2, 3]),
    "max-same": lambda g, x: g.MaxPool(
        x, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_LOWER"
    ),
    "average": lambda g, x: g.AveragePool(x, kernel_shape=[3, 3], pads=[1, 0, 1, 2]),
    "average-include": lambda g, x: g.AveragePool(
        x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2], count_include_pad=1
    ),
    "average-ceil": lambda g, x: g.AveragePool(x, kernel_shape=[2, 3], strides=[2, 2], ceil_mode=1),
    "average-same": lambda g, x: g.AveragePool(x, kernel_shape=[2, 2], auto_pad="SAME_UPPER"),
    "lp": lambda g, x: g.LpPool(x, kernel_shape=[2, 2], p=2),
    "global-average": lambda g, x: g.GlobalAveragePool(x),
    "global-max": lambda g, x: g.GlobalMaxPool(x),
}


@LAYOUTS
@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.slow
def test_pooling(kind, layout):
    assert_correct(between_convolutions(POOLS[kind]), layout)


@pytest.mark.slow
def test_several_poolings_in_one_network():
    g = Graph()
    x = g.input(2, 4, 9, 10)
    x = g.Conv(x, g.weight(8, 4, 3, 3))
    assert_correct(g.network(*[POOLS[kind](g, x) for kind in ("max-ceil", "max-dilated", "lp")]))


def halves(g: Graph, x: str) -> str:
    first, second = g.Split(x, g.const([3, 5]), outputs=2, axis=1)
    return g.Concat(second, first, axis=1)


MIDDLES = {
    "bias": lambda g, x: g.Add(x, g.weight(8, 1, 1)),
    "scale": lambda g, x: g.Mul(g.const(0.5, "float32"), x),
    "column": lambda g, x: g.Sub(x, g.weight(10)),
    "batch-norm": lambda g, x: g.BatchNormalization(
        g.Relu(x), *[g.weight(8) for _ in range(3)], g.const(RNG.rand(8) + 0.5, "float32")
    ),
    "instance-norm": lambda g, x: g.InstanceNormalization(x, g.weight(8), g.weight(8)),
    "group-norm": lambda g, x: g.GroupNormalization(x, g.weight(8), g.weight(8), num_groups=2),
    "layer-norm": lambda g, x: g.LayerNormalization(x, g.weight(10), g.weight(10)),
    "prelu": lambda g, x: g.PRelu(x, g.weight(8, 1, 1)),
    "softmax": lambda g, x: g.Softmax(x, axis=1),
    "split": halves,
    "slice": lambda g, x: g.Slice(x, *map(g.const, ([-1, 1], [-20, 8], [3, 2], [-2, 2]))),
    "pad": lambda g, x: g.Pad(x, g.const([0, 0, 1, 2, 0, 0, 0, 1]), mode="reflect"),
    "mean": lambda g, x: g.ReduceMean(x, g.const([2, 3]), keepdims=1),
    "max-of": lambda g, x: g.Max(x, g.Neg(x), g.const(0.1, "float32")),
    "reshape": lambda g, x: g.Reshape(x, g.const([2, 8, 10, 9])),
    "shuffle": lambda g, x: g.Reshape(
        g.Transpose(g.Reshape(x, g.const([2, 2, 4, 9, 10])), perm=[0, 2, 1, 3, 4]),
        g.const([2, 8, 9, 10]),
    ),
    "transpose": lambda g, x: g.Transpose(x, perm=[0, 1, 3, 2]),
    "depth-to-space": lambda g, x: g.SpaceToDepth(
        g.DepthToSpace(x, blocksize=2, mode="CRD"), blocksize=2
    ),
    "resize": lambda g, x: g.Resize(x, "", g.const([1, 1, 2, 2], "float32"), mode="linear"),
    "squeeze-excite": lambda g, x: g.Mul(
        x, g.HardSigmoid(g.Conv(g.GlobalAveragePool(x), g.weight(8, 8, 1, 1)))
    ),
    "lrn": lambda g, x: g.LRN(x, size=3),
    "clip": lambda g, x: g.Clip(x, g.const(0.0, "float32"), g.const(6.0, "float32")),
    "transposed": lambda g, x: g.ConvTranspose(
        x, g.weight(8, 8, 3, 3), g.weight(8), strides=[2, 2], output_padding=[1, 1], pads=[1] * 4
    ),
    "transposed-grouped": lambda g, x: g.ConvTranspose(
        x, g.weight(8, 4, 3, 2), group=2, strides=[1, 2], dilations=[2, 1]
    ),
    "transposed-shape": lambda g, x: g.ConvTranspose(
        x, g.weight(8, 8, 3, 3), strides=[2, 2], output_shape=[18, 20]
    ),
    "grouped": lambda g, x: g.Conv(x, g.weight(8, 4, 3, 3), group=2, strides=[2, 1]),
    "depthwise": lambda g, x: g.Conv(x, g.weight(8, 1, 5, 5), group=8, auto_pad="SAME_LOWER"),
}
QUICK = ("bias", "group-norm", "transposed", "max-of")


def middles() -> list[object]:
    """In both layouts. In CI most are in NHWC only: in NCHW nothing is transposed around them."""
    return [
        pytest.param(
            kind,
            layout,
            id=f"{kind}-{layout}",
            marks=pytest.mark.soak if layout == "NCHW" and kind not in QUICK else pytest.mark.slow,
        )
        for layout in ("NHWC", "NCHW")
        for kind in MIDDLES
    ]


@pytest.mark.parametrize(("kind", "layout"), middles())
def test_operators_between_convolutions(kind, layout):
    assert_correct(between_convolutions(MIDDLES[kind]), layout)


RANKS = {
    "conv": lambda g, x, r: g.Conv(x, g.weight(8, 8, *[3] * r), strides=[2] * r, pads=[1] * 2 * r),
    "grouped": lambda g, x, r: g.Conv(x, g.weight(8, 2, *[2] * r), group=4),
    "depthwise": lambda g, x, r: g.Conv(x, g.weight(8, 1, *[3] * r), group=8),
    "transposed": lambda g, x, r: g.ConvTranspose(x, g.weight(8, 8, *[3] * r), strides=[2] * r),
    "max": lambda g, x, r: g.MaxPool(x, kernel_shape=[2] * r, strides=[2] * r),
    "average": lambda g, x, r: g.AveragePool(x, kernel_shape=[2] * r, ceil_mode=1, strides=[2] * r),
    "global": lambda g, x, r: g.GlobalAveragePool(x),
    "bias": lambda g, x, r: g.Relu(g.Add(x, g.weight(8, *[1] * r))),
    "residual": lambda g, x, r: g.Add(
        x,
        g.BatchNormalization(
            g.Conv(x, g.weight(8, 8, *[3] * r), pads=[1] * 2 * r),
            *[g.weight(8) for _ in range(3)],
            g.const(RNG.rand(8) + 0.5, "float32"),
        ),
    ),
}


@LAYOUTS
@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize(
    "kind", [k if k == "residual" else pytest.param(k, marks=pytest.mark.slow) for k in RANKS]
)
@pytest.mark.slow
def test_convolutions_of_one_and_three_dimensions(kind, rank, layout):
    network = between_convolutions(lambda g, x: RANKS[kind](g, x, rank), rank)
    assert_correct(network, layout)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_nhwc_transposes_only_the_input_and_the_output(rank):
    def block(g: Graph, x: str) -> str:
        bounds = [g.const(bound, "float32") for bound in (0.0, 6.0)]
        y = g.Clip(g.Add(RANKS["conv"](g, x, rank), g.weight(8, *[1] * rank)), *bounds)
        z = g.MaxPool(y, kernel_shape=[1] * rank)
        halves = [(y, 0, 4), (z, 4, 8)]
        parts = [g.Slice(v, g.const([a]), g.const([b]), g.const([1])) for v, a, b in halves]
        return g.Concat(*parts, axis=1)

    plan = api.plan(between_convolutions(block, rank), layout="NHWC")
    calls = [task for task in plan.tasks for _ in task.sites if "transpose" in task.name]
    assert len(calls) == 2


@pytest.mark.slow
def test_activations():
    g = Graph()
    x = g.input(3, 40)
    plain = "Abs Ceil Cos Elu Erf Exp Floor Gelu HardSigmoid HardSwish LeakyRelu Mish Neg Relu"
    plain += " Reciprocal Round Selu Sigmoid Sign Sin Softplus Softsign Tan Tanh Celu Atan Sinh"
    outputs = [getattr(g, name)(x) for name in plain.split()]
    positive = g.Add(g.Abs(x), g.const(1.1, "float32"))
    outputs += [getattr(g, name)(positive) for name in ("Log", "Sqrt", "Acosh")]
    small = g.Mul(g.Tanh(x), g.const(0.9, "float32"))
    outputs += [getattr(g, name)(small) for name in ("Asin", "Acos", "Atanh", "Asinh", "Cosh")]
    outputs += [g.Gelu(x, approximate="tanh"), g.ThresholdedRelu(x, alpha=0.3)]
    outputs += [g.Shrink(x, lambd=0.5, bias=0.2), g.PRelu(x, g.weight(40))]
    outputs += [g.Clip(x, "", g.const(0.5, "float32")), g.Pow(x, g.const(2.0, "float32"))]
    outputs += [g.Pow(positive, g.const(0.5, "float32")), g.Pow(positive, x)]
    assert_correct(g.network(*outputs))


@pytest.mark.parametrize("opset", [pytest.param(12, marks=pytest.mark.slow), 21])
def test_reductions_and_softmax(opset):
    g = Graph(opset)
    x = g.input(3, 4, 5)
    positive = g.Add(g.Abs(x), g.const(0.1, "float32"))
    outputs = []
    kinds = ["Max", "Min", "Sum", "Mean", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare"]
    for number, kind in enumerate(kinds):
        axes, keepdims = [[0, 2], [-1], [1]][number % 3], number % 2
        reduce = getattr(g, f"Reduce{kind}")
        if opset >= 18 or (kind == "Sum" and opset >= 13):
            outputs.append(reduce(positive, g.const(axes), keepdims=keepdims))
        else:
            outputs.append(reduce(positive, axes=axes, keepdims=keepdims))
    outputs += [g.ReduceMax(x, keepdims=0), g.Softmax(x, axis=1), g.LogSoftmax(x, axis=-1)]
    outputs += [g.Hardmax(x, axis=1), g.ArgMax(x, axis=1, keepdims=0), g.ArgMin(x, axis=-1)]
    assert_correct(g.network(*outputs))


@pytest.mark.slow
def test_matrix_products():
    g = Graph()
    a, b = g.input(2, 3, 4, 5), g.input(2, 1, 5, 6)
    outputs = [g.MatMul(a, b), g.MatMul(a, g.weight(5, 7)), g.MatMul(a, g.weight(5))]
    c = g.Reshape(a, g.const([24, 5]))
    outputs.append(g.Gemm(c, g.weight(7, 5), g.weight(7), transB=1, alpha=0.5, beta=2.0))
    outputs.append(g.Gemm(c, g.weight(24, 7), transA=1))
    outputs.append(g.Einsum(a, b, equation="bhij,bhjk->bik"))
    outputs.append(g.Einsum(c, equation="ij->ji"))
    assert_correct(g.network(*outputs))


@pytest.mark.slow
def test_moving_elements():
    g = Graph()
    x = g.input(2, 3, 4)
    outputs = [g.Expand(g.Unsqueeze(x, g.const([1])), g.const([2, 5, 3, 4]))]
    outputs += [
        g.Tile(x, g.const([1, 2, 3])),
        g.Squeeze(g.Slice(x, *map(g.const, ([0], [1], [0]))), g.const([0])),
    ]
    outputs += [g.Flatten(x, axis=2), g.Transpose(x, perm=[2, 0, 1])]
    outputs += [g.Pad(x, g.const([0, 1, 0, 2]), g.const(0.5, "float32"), g.const([0, 2]))]
    outputs += [g.Pad(x, g.const([0, 1, 1, 0, 1, 0]), mode=m) for m in ("edge", "wrap")]
    outputs += [*g.Split(x, outputs=2, axis=2, num_outputs=2), g.Trilu(x, upper=0)]
    outputs += [g.Concat(x, g.Neg(x), axis=-1), g.CumSum(x, g.const(1), exclusive=1, reverse=1)]
    outputs += [g.CumSum(x, g.const(-1)), *g.TopK(x, g.const([2]), outputs=2, axis=1)]
    assert_correct(g.network(*outputs))


@pytest.mark.slow
def test_gathering_and_scattering():
    g = Graph()
    table, x = g.weight(50, 8), g.input(3, 4)
    ids = g.input(2, 5, dtype=TensorProto.INT64)
    outputs = [g.Gather(table, ids), g.Gather(x, g.const([-1, 0]), axis=1)]
    places = g.const([[0, -1, 2], [1, 1, 0]])
    outputs.append(g.GatherElements(x, g.const([[0, -1], [1, 1], [3, -4]]), axis=1))
    outputs.append(g.GatherND(x, g.const([[0, 1], [-1, 3]])))
    outputs.append(g.ScatterElements(x, places, g.weight(2, 3), axis=1))
    outputs.append(g.ScatterND(x, g.const([[2], [0]]), g.weight(2, 4), reduction="add"))
    outputs.append(g.OneHot(ids, g.const(30), g.const([0.5, 2.0], "float32"), axis=1))
    outputs.append(g.Compress(x, g.const([1, 0, 1], "bool"), axis=0))
    assert_correct(g.network(*outputs), x1=np.array([[0, 7, 49, 3, -1], [-50, 1, 2, 3, 4]]))


def test_an_index_out_of_range_neither_crashes_nor_changes_other_results():
    g = Graph()
    ids = g.input(4, dtype=TensorProto.INT64)
    network = g.network(g.Gather(g.weight(50, 8), ids))
    plan = assert_correct(network, x0=np.array([0, 1, 2, 49]))
    library = build(plan.backend.lower(plan.prepared, {}, plan.device), plan.device)
    feed = {"x0": np.array([0, 1 << 40, -(1 << 40), 49])}
    wild = run_network(library, network, feed, plan.device.runtime)[0]
    right = network.reference({"x0": np.array([0, 1, 2, 49])})[0]
    assert np.array_equal(wild[[0, 3]], right[[0, 3]])


@pytest.mark.slow
def test_logic_comparisons_and_types():
    g = Graph()
    x, y = g.input(3, 4), g.input(4)
    a, b = g.Greater(x, y), g.LessOrEqual(x, g.const(0.3, "float32"))
    outputs = [g.Where(a, x, y), g.And(a, b), g.Or(a, b), g.Xor(a, b), g.Not(a), g.Equal(a, b)]
    outputs += [g.Cast(x, to=TensorProto.INT32), g.Cast(a, to=TensorProto.FLOAT)]
    outputs += [g.Max(x, y), g.Min(x, y, x), g.Mean(x, y), g.Sum(x, y, x)]
    n = g.Cast(g.Mul(x, g.const(9.0, "float32")), to=TensorProto.INT64)
    outputs += [g.Mod(n, g.const(4)), g.Mod(n, g.const(4), fmod=1), g.Div(n, g.const(2))]
    outputs += [
        g.Pow(n, g.const(3)),
        g.IsInf(g.Exp(g.Mul(x, g.const(999.0, "float32"))), detect_negative=0),
    ]
    assert_correct(g.network(*outputs))


MODES = [
    {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    {"mode": "nearest", "nearest_mode": "round_prefer_ceil"},
    {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
    {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"},
    {"mode": "cubic"},
    {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1},
]


@pytest.mark.slow
@pytest.mark.parametrize("scale", [2.0, 0.6])
def test_resize(scale):
    g = Graph()
    x = g.input(1, 2, 7, 5)
    scales, sizes = g.const([1, 1, scale, 1.5], "float32"), g.const([1, 2, 11, 4])
    outputs = [g.Resize(x, "", scales, **mode) for mode in MODES]
    outputs += [g.Resize(x, "", "", sizes, **mode) for mode in MODES]
    if scale == 2.0:
        policy = {"keep_aspect_ratio_policy": "not_larger", "axes": [2, 3]}
        outputs.append(g.Resize(x, "", "", g.const([11, 9]), mode="nearest", **policy))
    assert_correct(g.network(*outputs))


@pytest.mark.parametrize("opset", [9, 10, pytest.param(13, marks=pytest.mark.slow)])
def test_old_operator_sets(opset):
    g = Graph(opset)
    x = g.input(1, 4, 6, 6)
    x = g.Conv(x, g.weight(4, 4, 3, 3), pads=[1] * 4)
    scales = g.const([1, 1, 2, 2], "float32")
    if opset == 9:
        x = g.Upsample(x, scales, mode="nearest")
    else:
        x = g.Resize(x, scales) if opset == 10 else g.Resize(x, "", scales)
    x = g.Dropout(g.Relu(x)) if opset < 13 else g.Dropout(x, g.const(0.5, "float32"))
    if opset == 9:
        x = g.Pad(g.Slice(x, starts=[1], ends=[9], axes=[2]), pads=[0, 0, 1, 0, 0, 0, 0, 0])
    assert_correct(g.network(g.Flatten(g.GlobalAveragePool(x)), x))


@pytest.mark.slow
@pytest.mark.parametrize("opset", [21, 17, 23])
def test_normalization_with_all_outputs(opset):
    g = Graph(opset)
    x = g.input(2, 6, 8)
    normal = g.LayerNormalization(x, g.weight(6, 8), g.weight(6, 8), axis=1, outputs=3)
    outputs = [*normal, g.InstanceNormalization(x, g.weight(6), g.weight(6))]
    outputs.append(g.MeanVarianceNormalization(x, axes=[0, 2]))
    if opset >= 21:
        outputs.append(g.GroupNormalization(x, g.weight(6), g.weight(6), num_groups=3))
    if opset >= 23:
        outputs += [
            g.RMSNormalization(x, g.weight(8)),
            g.Attention(x, x, x, q_num_heads=2, kv_num_heads=2),
        ]
    assert_correct(g.network(*outputs))


def test_a_branch_with_a_constant_condition_is_resolved():
    def branch(operator: str) -> onnx.GraphProto:
        node = helper.make_node(operator, ["x0"], [f"{operator}_out"])
        info = helper.make_tensor_value_info(f"{operator}_out", TensorProto.FLOAT, None)
        return helper.make_graph([node], operator, [], [info])

    g = Graph()
    x = g.input(2, 3)
    condition = g.Equal(g.Squeeze(g.Shape(x, start=0, end=1)), g.const(2))
    y = g.If(condition, then_branch=branch("Neg"), else_branch=branch("Exp"))
    assert_correct(g.network(g.Abs(y), y))


def error_of(g: Graph, *outputs: str) -> str:
    with pytest.raises(TvmtuneError) as caught:
        api.plan(g.network(*outputs))
    return str(caught.value)


def test_operators_without_a_converter_are_rejected_with_the_node_and_a_remedy():
    g = Graph()
    x = g.input(1, 3, 8, 8, dtype=TensorProto.UINT8)
    y = g.DeformConv(x, g.const(RNG.randn(4, 3, 3, 3)), g.const(np.zeros((1, 18, 6, 6))))
    assert "node 'DeformConv0' (DeformConv, opset 21)" in (message := error_of(g, y))
    assert "replace it by other operators" in message


def test_data_dependent_shapes_are_rejected():
    g = Graph()
    nonzero = g.NonZero(g.input(3, 4))
    message = error_of(g, g.Cast(g.ReduceSum(nonzero), to=TensorProto.FLOAT))
    assert "node 'NonZero0'" in message
    assert "depends on the data" in message
    boxes = g.NonMaxSuppression(g.input(1, 6, 4), g.input(1, 2, 6))
    message = error_of(g, g.Cast(g.ReduceSum(boxes), to=TensorProto.FLOAT))
    assert "(NonMaxSuppression, opset 21)" in message
    assert "without its postprocessing" in message


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda g, x: g.MaxPool(x, kernel_shape=[2, 2], outputs=2), "MaxPool"),
        (
            lambda g, x: [
                g.Resize(x, "", g.const([1, 1, 0.5, 0.5], "float32"), mode="linear", antialias=1)
            ],
            "Resize",
        ),
    ],
)
def test_unsupported_attributes_are_rejected(make, named):
    g = Graph()
    message = error_of(g, *make(g, g.input(1, 2, 8, 8)))
    assert f"node '{named}0'" in message
    assert "not supported" in message
