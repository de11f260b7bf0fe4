"""Integer arithmetic of quantized layers: scales, rounding, bounds, and the error against float."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from kernels import this_machine
from quantize import cnn
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.networks.inputs import random_inputs
from tvmtune.passes import pipeline
from tvmtune.quantize import calibrate, integers, region, scales
from tvmtune.quantize.integers import QuantizedConvolution, QuantizedSum
from tvmtune.quantize.layers import ConvolutionLayer, SumLayer
from tvmtune.quantize.network import QuantizedNetwork


def quantized(network, samples=None) -> QuantizedNetwork:
    prepared = pipeline.prepare(network, this_machine(), "NCHW")
    layers = region.find_region(prepared.graph).layers
    return QuantizedNetwork(prepared, layers, samples)


@pytest.fixture(scope="module")
def quantized_network() -> QuantizedNetwork:
    network = cnn.residual()
    return quantized(network, [random_inputs(network.inputs, seed) for seed in range(3)])


@pytest.mark.parametrize("exponent", [-20, -3, 0, 5])
def test_values_on_the_grid_survive_a_round_trip(exponent):
    steps = np.arange(-127, 128, dtype=np.int8)
    values = integers.dequantize(steps, exponent)
    assert np.array_equal(integers.quantize(values, exponent), steps)


def test_values_out_of_range_are_clipped():
    values = np.array([-1e9, -127.6, 127.4, 1e9], np.float32)
    assert integers.quantize(values, 0).tolist() == [-127, -127, 127, 127]


def test_an_exponent_reaches_the_largest_value():
    assert scales.exponent_for(np.full(1000, 127.0, np.float32)) == 0
    assert scales.exponent_for(np.full(1000, 128.0, np.float32)) == 1
    assert scales.exponent_for(np.zeros(4, np.float32)) == scales.ZERO_TENSOR_EXPONENT


def test_a_few_large_values_are_clipped_to_keep_finer_steps():
    values = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    plain = scales.exponent_for(values)
    values[0] = 1.1 * np.ldexp(127.0, plain)
    assert scales.exponent_for(values) == plain


def test_values_that_are_not_finite_are_refused():
    with pytest.raises(TvmtuneError, match="not finite"):
        scales.exponent_for(np.array([1.0, math.nan], np.float32))


@pytest.mark.parametrize("groups", [1, 2])
def test_a_quantized_convolution_rounds_its_sum_once(groups):
    rng = np.random.default_rng(1)
    layer = ConvolutionLayer(
        *(("x",), "y", ((2, 4, 6, 5),), (1, 6, 3, 3)),
        strides=(2, 2),
        padding=(1, 1, 1, 1),
        groups=groups,
    )
    weights = rng.integers(-127, 128, (6, 4 // groups, 3, 3)).astype(np.int8)
    bias = rng.integers(-5000, 5000, 6).astype(np.int32)
    quantized_layer = QuantizedConvolution(layer, (0,), 5, 5, -100, 90, weights, 0, bias)
    x = rng.integers(-128, 128, (2, 4, 6, 5)).astype(np.int8)
    got = quantized_layer.run([x])
    padded = np.pad(x.astype(int), [(0, 0), (0, 0), (1, 1), (1, 1)])
    for n, o, y, z in np.ndindex(got.shape):
        first = o // (6 // groups) * (4 // groups)
        window = padded[n, first : first + 4 // groups, 2 * y : 2 * y + 3, 2 * z : 2 * z + 3]
        total = int((window * weights[o].astype(int)).sum()) + int(bias[o])
        assert got[n, o, y, z] == min(90, max(-100, total >> 5))


def test_a_sum_rounds_half_up_at_the_finer_scale():
    layer = SumLayer(("a", "b"), "y", ((1, 1, 1, 3),) * 2, (1, 1, 1, 3))
    quantized_layer = QuantizedSum(layer, (1, 0), 1, 1, -127, 127, factors=(1, 0))
    a, b = np.array([[[[1, 2, 100]]]], np.int8), np.array([[[[1, -1, 100]]]], np.int8)
    assert quantized_layer.run([a, b]).tolist() == [[[[2, 2, 127]]]]


@pytest.mark.slow
def test_each_layer_is_close_to_its_float_layer(quantized_network):
    rows = quantized_network.table()
    assert [row.kind for row in rows][:3] == ["convolution", "convolution", "sum"]
    assert all(row.sqnr > 20 for row in rows), rows
    assert all(row.shift >= 0 for row in rows)


@pytest.mark.slow
def test_a_quantized_network_is_close_to_the_float_network(quantized_network):
    inputs = random_inputs(quantized_network.inputs, 100)
    (got,), (wanted,) = (
        quantized_network.reference(inputs),
        quantized_network.float.reference(inputs),
    )
    assert np.argmax(got) == np.argmax(wanted)
    noise = float(np.sum((got - wanted) ** 2)) / float(np.sum(wanted**2))
    assert 0 < noise < 0.01


def test_activation_bounds_may_be_infinite():
    layer = SumLayer(("a", "b"), "y", ((1, 1, 1, 2),) * 2, (1, 1, 1, 2), 0.0, math.inf)
    tensors = {name: np.full((1, 1, 1, 2), 3.0, "float32") for name in "aby"}
    ((quantized_layer,), _) = scales.quantize_layers([layer], tensors)
    assert (quantized_layer.low, quantized_layer.high) == (0, 127)


@pytest.mark.parametrize("size", [1e-3, 0.5, 1e4])
def test_a_sum_with_an_operand_of_zeros(size):
    layer = SumLayer(("a", "b"), "y", ((1, 1, 1, 2),) * 2, (1, 1, 1, 2))
    tensors = {name: np.full((1, 1, 1, 2), size, "float32") for name in "ay"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ((quantized_layer,), _) = scales.quantize_layers(
            [layer], tensors | {"b": np.zeros((1, 1, 1, 2), "float32")}
        )
    a = integers.quantize(tensors["a"], quantized_layer.exponents[0])
    got = integers.dequantize(quantized_layer.run([a, np.zeros_like(a)]), quantized_layer.exponent)
    np.testing.assert_allclose(got, tensors["y"], rtol=0.01)


def test_a_negligible_operand_of_a_sum_is_dropped_with_a_warning():
    layer = SumLayer(("a", "b"), "y", ((1, 1, 1, 2),) * 2, (1, 1, 1, 2))
    tensors = {name: np.full((1, 1, 1, 2), 100.0, "float32") for name in "ay"}
    tensors["b"] = np.full((1, 1, 1, 2), 0.01, "float32")
    with pytest.warns(
        UserWarning, match="what b adds .at most 0.01 to at most 1e.02. is less than"
    ):
        ((quantized_layer,), _) = scales.quantize_layers([layer], tensors)
    assert quantized_layer.factors == (0, None)
    a, b = (
        integers.quantize(tensors[n], e)
        for n, e in zip("ab", quantized_layer.exponents, strict=True)
    )
    got = integers.dequantize(quantized_layer.run([a, b]), quantized_layer.exponent)
    np.testing.assert_allclose(got, tensors["y"], rtol=0.01)


def test_values_that_fit_do_not_count_as_clipped():
    """The extremes of int8 are not clipped."""
    layer = SumLayer(("a", "b"), "y", ((1, 1, 1, 4),) * 2, (1, 1, 1, 4))
    values = np.array([127, -127, 1, 2], "float32").reshape(1, 1, 1, 4)
    tensors = {"a": values, "b": np.zeros_like(values), "y": values}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (row,) = scales.table(*scales.quantize_layers([layer], tensors), tensors)
    assert row.cut == 0


def test_sqnr_is_none_without_noise():
    layer = SumLayer(("a", "b"), "y", ((1, 1, 1, 1),) * 2, (1, 1, 1, 1))
    tensors = {"a": np.ones((1, 1, 1, 1), "float32"), "b": np.ones((1, 1, 1, 1), "float32")}
    tensors["y"] = 2 * tensors["a"]
    (row,) = scales.table(*scales.quantize_layers([layer], tensors), tensors)
    assert row.sqnr is None


@pytest.mark.slow
def test_random_samples_are_used_with_a_warning():
    network = quantized(cnn.residual(16, 8))
    with pytest.warns(UserWarning, match="calibrated with 4 random inputs"):
        assert network.quantized_layers


def test_calibration_data_are_split_into_runs():
    network = cnn.residual()
    data = {"data": np.random.default_rng(0).standard_normal((3, 3, 16, 16))}
    runs = calibrate.split_runs(network, data, "file")
    assert [run["data"].shape for run in runs] == [(1, 3, 16, 16)] * 3
    assert all(run["data"].dtype == np.float32 for run in runs)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "no array 'data'"),
        ({"data": np.ones((2, 3, 16, 15))}, "'data' is 2x3x16x15, and the network takes 1x3x16x16"),
        ({"data": np.zeros((2, 3, 16, 16))}, "only zeros"),
        ({"data": np.full((1, 3, 16, 16), np.inf)}, "not finite numbers"),
        ({"data": np.full((1, 3, 16, 16), 1e200)}, "not finite numbers of float32"),
        ({"data": np.empty((0, 3, 16, 16))}, "'data' is 0x3x16x16"),
        ({"data": np.full((1, 3, 16, 16), "a")}, "not finite numbers"),
    ],
)
def test_unsuitable_calibration_data_are_refused(data, message):
    with pytest.raises(UsageError) as raised:
        calibrate.split_runs(cnn.residual(), data, "file")
    assert message in str(raised.value)


def test_a_bias_beyond_32_bits_is_refused():
    layer = ConvolutionLayer(
        *(("x",), "y", ((1, 1, 1, 1),), (1, 1, 1, 1)),
        constants=(
            _constant(np.full((1, 1, 1, 1), 1e-6)),
            ("relax.add", _constant(np.full(1, 1e6))),
        ),
    )
    tensors = {
        "x": np.full((1, 1, 1, 1), 1e-3, "float32"),
        "y": np.full((1, 1, 1, 1), 1e6, "float32"),
    }
    with pytest.raises(TvmtuneError, match="layer y cannot be computed in 32 bits"):
        scales.quantize_layers([layer], tensors)


def _constant(array: np.ndarray):
    from tvm import relax

    return relax.const(array.astype("float32"))
