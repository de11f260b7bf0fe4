"""Quantized TFLite models: what LiteRT's integer kernels compute, within a step, by integer kernels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from networks.in_tvm import assert_equal, run_in_tvm
from tvmtune import api, host, networks
from tvmtune.bench.verify import allowed_errors, run_check
from tvmtune.dot_instructions import for_bytes
from tvmtune.errors import TvmtuneError
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.tflite.network import TfliteNetwork
from tvmtune.runtime.library import Library

pytest.importorskip("tflite")
pytest.importorskip("ai_edge_litert.interpreter")

from ai_edge_litert import schema_py_generated as schema

from networks.tflite_models import (
    RELU,
    RELU6,
    SAME,
    VALID,
    QuantizedBuilder,
    TfliteBuilder,
    quantized_cnn,
    weights,
)

INTEGERS = for_bytes(host.backend("cpu").make_target({}, None).target) is not None
"""Whether this machine computes in integers at all."""


def network(content: bytes) -> TfliteNetwork:
    return TfliteNetwork(content, name="net", label="net.tflite")


def refusal(content: bytes) -> str:
    with pytest.raises(TvmtuneError) as raised:
        network(content).to_relax()
    text = str(raised.value)
    assert "\n" not in text
    assert "net.tflite" in text
    return text


def assert_within_a_step(content: bytes, most: int = 1) -> None:
    """TVM without schedules and LiteRT agree but for a step."""
    made = network(content)
    assert made.computes == "int8"
    for seed in (1, 2):
        inputs = random_inputs(made.inputs, seed)
        for got, wanted in zip(run_in_tvm(made, inputs), made.reference(inputs), strict=True):
            assert got.dtype == wanted.dtype
            apart = np.abs(got.astype(int) - wanted.astype(int))
            assert apart.max() <= most
            assert (apart > 0).mean() < 0.3
            assert np.ptp(wanted.astype(int)) > 10


X = (1, 9, 8, 4)
WINDOW = {"padding": SAME, "strideW": 2, "strideH": 2}
POOL = {**WINDOW, "filterWidth": 3, "filterHeight": 3}


def one(
    operator: str, shape: Any, *constants: Any, scale: float = 0.05, zero: int = 0, **options: Any
) -> Callable[[str], bytes]:
    """``x`` and constants through an operator."""

    def build(dtype: str) -> bytes:
        g = QuantizedBuilder(dtype)
        given = [g.data(X), *(g.constant(value) for value in constants)]
        return g.content(g.apply(operator, given, shape, scale, zero, **options))

    return build


def layer(
    operator: str, kernel: Any, shape: Any, axis: int | None = 0, source: Any = X, **options: Any
) -> Callable[[str], bytes]:
    def build(dtype: str) -> bytes:
        g = QuantizedBuilder(dtype)
        chosen = None if dtype == "uint8" else axis
        x = g.data(source, zero=0 if dtype == "int16" else 3)
        return g.content(g.layer(operator, x, 7, kernel, shape, 0.1, chosen, **options))

    return build


def two(
    operator: str, shape: Any = X, scale: float = 0.02, **options: Any
) -> Callable[[str], bytes]:
    """Of values of which the second have ``scale``."""

    def build(dtype: str) -> bytes:
        g = QuantizedBuilder(dtype)
        given = [g.data(X, 0.06), g.data(X, scale, 7 if scale == 0.02 and dtype != "int16" else 0)]
        return g.content(g.apply(operator, given, shape, 0.06, **options))

    return build


OPERATORS = {
    "convolution": layer("CONV_2D", (6, 3, 3, 4), (1, 5, 4, 6), **WINDOW),
    "grouped": layer("CONV_2D", (6, 3, 3, 2), (1, 5, 4, 6), **WINDOW),
    "clipped": layer(
        "CONV_2D", (6, 1, 1, 4), (1, 9, 8, 6), padding=VALID, strideW=1, strideH=1,
        fusedActivationFunction=RELU6,
    ),
    "depthwise": layer(
        "DEPTHWISE_CONV_2D", (1, 3, 3, 4), (1, 5, 4, 4), 3, **WINDOW, depthMultiplier=1
    ),
    "multiplied": layer(
        "DEPTHWISE_CONV_2D", (1, 3, 3, 8), (1, 5, 4, 8), 3, **WINDOW, depthMultiplier=2
    ),
    "dense": layer("FULLY_CONNECTED", (10, 4), (9, 10), source=(9, 4), fusedActivationFunction=RELU),
    "add": two("ADD", fusedActivationFunction=RELU),
    "subtract": two("SUB"),
    "multiply": two("MUL"),
    "concatenation": two("CONCATENATION", (1, 9, 8, 8), 0.06, axis=3),
    "average pool": one("AVERAGE_POOL_2D", (1, 5, 4, 4), **POOL),
    "max pool": one("MAX_POOL_2D", (1, 5, 4, 4), **POOL),
    "mean": one("MEAN", (1, 4), np.array([1, 2], np.int32), scale=0.01, zero=5),
    "pad": one("PAD", (1, 12, 9, 4), np.array([[0, 0], [1, 2], [0, 1], [0, 0]], np.int32)),
    "reshape": one("RESHAPE", (8, 36), np.array([8, 36], np.int32)),
    "transpose": one("TRANSPOSE", (1, 4, 9, 8), np.array([0, 3, 1, 2], np.int32)),
    "bilinear": one(
        "RESIZE_BILINEAR", (1, 18, 16, 4), np.array([18, 16], np.int32), halfPixelCenters=True
    ),
    "nearest": one("RESIZE_NEAREST_NEIGHBOR", (1, 18, 16, 4), np.array([18, 16], np.int32)),
    "softmax": one("SOFTMAX", X, scale=1 / 256, zero=-128, beta=1.0),
    "logistic": one("LOGISTIC", X, scale=1 / 256, zero=-128),
    "tanh": one("TANH", X, scale=1 / 128),
    "hard swish": one("HARD_SWISH", X, zero=-40),
    "leaky relu": one("LEAKY_RELU", X, alpha=0.2),
    "relu": one("RELU", X, scale=0.03, zero=-100),
}  # fmt: skip


QUICK = ("depthwise", "dense", "add")
"""The rest takes a second each."""


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(
            name, dtype, marks=[] if name in QUICK and dtype == "int8" else pytest.mark.slow
        )
        for name in OPERATORS
        for dtype in ("int8", "uint8")
        if (name, dtype) != ("grouped", "uint8")  # LiteRT has no such kernel
    ],
)
def test_operators_compute_what_litert_computes_but_for_a_step(name: str, dtype: str):
    assert_within_a_step(OPERATORS[name](dtype))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_averages_round_halves_away_from_zero(dtype: str, size: int):
    """As LiteRT does: equal, not just within a step."""
    window = {**WINDOW, "filterWidth": size, "filterHeight": size}
    assert_within_a_step(one("AVERAGE_POOL_2D", (1, 5, 4, 4), **window)(dtype), most=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["convolution", "dense", "add"])
def test_activations_of_16_bits_are_computed_in_floats(name: str):
    """16x8: int8 weights, a bias of int64."""
    assert_within_a_step(OPERATORS[name]("int16"))


def test_quantized_constants_are_operands_like_others():
    g = QuantizedBuilder()
    steps = g.scaled(g.constant(np.arange(-2, 2), "int8"), 0.1, 3)
    assert_within_a_step(g.content(g.apply("MUL", [g.data(X), steps], X, 0.02)))


def test_inputs_and_outputs_may_be_floats_or_of_another_scale():
    g = QuantizedBuilder("uint8")
    x = g.apply("QUANTIZE", [g.input("x", X)], X, 0.02)
    y = g.apply("QUANTIZE", [g.apply("TANH", [x], X, 1 / 128)], X, 1 / 100, 20)
    made = network(g.content(y, g.add("DEQUANTIZE", [y], X)))
    assert [spec.dtype for spec in (*made.inputs, *made.outputs)] == ["float32", "uint8", "float32"]
    inputs = random_inputs(made.inputs, 1)
    for got, wanted, step in zip(
        run_in_tvm(made, inputs), made.reference(inputs), (1, 0.0101), strict=True
    ):
        assert np.abs(got.astype(float) - wanted.astype(float)).max() <= step


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "per_channel", "wide"),
    [
        ("int8", True, False),
        ("int8", False, False),
        ("uint8", False, False),
        ("uint8", False, True),
    ],
)
@pytest.mark.parametrize(
    ("processor", "has"), [(None, INTEGERS), ("haswell", True), ("x86-64-v2", False)]
)
def test_layers_are_integer_kernels_where_there_are_instructions(
    dtype: str, per_channel: bool, wide: bool, processor: str | None, has: bool, tmp_path: Path
):
    path = tmp_path / "net.tflite"
    path.write_bytes(quantized_cnn(dtype, per_channel=per_channel, wide=wide))
    net = networks.load(str(path))
    plan = api.plan(net, "cpu", attrs={"mcpu": processor} if processor else None)
    products = [task.name for task in plan.tasks if "conv2d" in task.name or "matmul" in task.name]
    # Wide weights take the sum of the data, too, but for each channel alone.
    assert len(products) == (7 if wide and has else 4)
    assert [has] * len(products) == ["quantized" in name for name in products]
    library = Library.open(api.compile(plan, tmp_path / "lib.so").path)
    assert run_check(library, library.metadata["check"]).passed
    for seed in (50, 51, 52):
        inputs = random_inputs(net.inputs, seed)
        (got,), (wanted,) = library.run(inputs), net.reference(inputs)
        assert got.dtype == wanted.dtype == np.dtype(dtype)
        assert np.abs(got.astype(int) - wanted.astype(int)).max() <= 1
        assert np.ptp(wanted.astype(int)) > 10


def test_the_check_allows_what_rounding_networks_differ_by():
    assert [each.error for each in allowed_errors(network(quantized_cnn()))] == [0.1]


def test_integer_weights_of_float_layers_become_floats():
    """As dynamic range quantization leaves them."""

    def dense(*, is_float: bool) -> TfliteNetwork:
        g = QuantizedBuilder()
        x, (place, scales) = g.input("x", (2, 4)), g.weights(3, 5, 4)
        if is_float:
            steps = g.model.buffers[g.graph.tensors[place].buffer].data.view(np.int8).reshape(5, 4)
            place = g.constant((steps * scales[:, None]).astype(np.float32))
        return network(g.content(g.add("FULLY_CONNECTED", [x, place, -1], (2, 5))))

    hybrid, plain = dense(is_float=False), dense(is_float=True)
    assert not hasattr(hybrid, "computes")
    inputs = random_inputs(hybrid.inputs, 1)
    assert_equal(run_in_tvm(hybrid, inputs), plain.reference(inputs))
    assert_equal(hybrid.reference(inputs), plain.reference(inputs))


def test_a_failing_conversion_is_named_with_its_index_in_the_file():
    g = QuantizedBuilder()
    x = g.apply("TANH", [g.data((1, 4))], (1, 4), 1 / 128)
    text = refusal(g.content(g.apply("L2_NORMALIZATION", [x], (1, 4), 1 / 128)))
    assert text.startswith("operator 1 (L2_NORMALIZATION) of net.tflite cannot be imported")


def dense(**changes: Any) -> bytes:
    """A product whose weights' scales are overridden."""
    g = QuantizedBuilder()
    x, (place, _) = g.data((2, 4)), g.weights(3, 5, 4)
    for name, value in changes.items():
        setattr(g.graph.tensors[place].quantization, name, value)
    return g.content(g.apply("FULLY_CONNECTED", [x, place, -1], (2, 5), 0.05))


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (
            dense(scale=np.zeros(5, np.float32)),
            "is int8 with the scale 0.0, which must be positive",
        ),
        (dense(scale=np.full(5, np.nan, np.float32)), "is int8 with the scale nan"),
        (dense(quantizedDimension=1), "is 5x4 with 5 scales for dimension 1"),
        (dense(quantizedDimension=-1), "is 5x4 with 5 scales for dimension -1"),
        (dense(scale=np.ones(3, np.float32)), "is 5x4 with 3 scales for dimension 0"),
        (dense(zeroPoint=np.zeros(2, np.int64)), "is int8 with 5 scales, but 2 zero points"),
        (dense(zeroPoint=np.full(5, 300)), "is int8 with a zero point outside of its range"),
        (dense(scale=None), "is int8 without a scale, which operator 0 (FULLY_CONNECTED) needs"),
        (
            dense(
                detailsType=schema.QuantizationDetails.BlockwiseQuantization,
                details=schema.BlockwiseQuantizationT(),
            ),
            "is int8 in blocks with scales of their own",
        ),
    ],
    ids=["zero", "nan", "axis", "negative axis", "number", "zeros", "range", "missing", "blocks"],
)
def test_unsound_and_unsupported_scales_are_refused(content: bytes, cause: str):
    text = refusal(content)
    assert text.startswith("tensor 'constant_1' of net.tflite is ")
    assert cause in text
    assert "convert the network again, or without quantization" in text


def test_a_layer_of_integers_and_floats_is_refused():
    g = QuantizedBuilder()
    given = [g.data((2, 4)), g.constant(weights(1, 5, 4)), -1]
    text = refusal(g.content(g.add("FULLY_CONNECTED", given, (2, 5))))
    assert text.startswith("operator 0 (FULLY_CONNECTED) of net.tflite mixes quantized tensors")


def test_weights_of_4_bits_are_refused():
    g = TfliteBuilder()
    place = g.constant(np.zeros((5, 2)), "int8")
    tensor = g.graph.tensors[place]
    tensor.shape, tensor.type = np.array([5, 4], np.int32), schema.TensorType.INT4
    tensor.quantization = schema.QuantizationParametersT()
    tensor.quantization.scale = np.array([0.5], np.float32)
    tensor.quantization.zeroPoint = np.array([0], np.int64)
    content = g.content(g.add("FULLY_CONNECTED", [g.input("x", (2, 4)), place, -1], (2, 5)))
    assert "is int4 with a scale, which is not supported" in refusal(content)
