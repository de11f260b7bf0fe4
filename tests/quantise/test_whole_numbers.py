"""Layers in whole numbers: scales, rounding, bounds, and how far they are from float."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from graph.kernels import this_machine
from quantise import cnn
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.graph import pipeline
from tvmtune.networks.inputs import random_inputs
from tvmtune.quantise import calibrate, integers, region, scales
from tvmtune.quantise.network import QuantisedNetwork


def quantised(network, samples=None) -> QuantisedNetwork:
    prepared = pipeline.prepare(network, this_machine(), "NCHW")
    layers = region.find(prepared.graph).layers
    return QuantisedNetwork(prepared, layers, samples)


@pytest.fixture(scope="module")
def whole() -> QuantisedNetwork:
    network = cnn.residual()
    return quantised(network, [random_inputs(network.inputs, seed) for seed in range(3)])


@pytest.mark.parametrize("exponent", [-20, -3, 0, 5])
def test_values_survive_in_steps_of_a_power_of_two(exponent):
    steps = np.arange(-127, 128, dtype=np.int8)
    values = integers.restore(steps, exponent)
    assert np.array_equal(integers.quantise(values, exponent), steps)


def test_what_lies_beyond_is_cut():
    values = np.array([-1e9, -127.6, 127.4, 1e9], np.float32)
    assert integers.quantise(values, 0).tolist() == [-127, -127, 127, 127]


def test_an_exponent_reaches_the_largest_value():
    assert scales.exponent_for(np.full(1000, 127.0, np.float32)) == 0
    assert scales.exponent_for(np.full(1000, 128.0, np.float32)) == 1
    assert scales.exponent_for(np.zeros(4, np.float32)) == scales.DEAD


def test_few_large_values_are_cut_for_the_sake_of_the_others():
    values = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    plain = scales.exponent_for(values)
    values[0] = 1.1 * np.ldexp(127.0, plain)
    assert scales.exponent_for(values) == plain


def test_values_that_are_not_finite_are_refused():
    with pytest.raises(TvmtuneError, match="not finite"):
        scales.exponent_for(np.array([1.0, math.nan], np.float32))


@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_in_whole_numbers_is_its_sum_rounded_once(groups):
    rng = np.random.default_rng(1)
    layer = region.Layer(
        *("convolution", ("x",), "y", ((2, 4, 6, 5),), (1, 6, 3, 3)),
        strides=(2, 2),
        padding=(1, 1, 1, 1),
        groups=groups,
    )
    weights = rng.integers(-127, 128, (6, 4 // groups, 3, 3)).astype(np.int8)
    bias = rng.integers(-5000, 5000, 6).astype(np.int32)
    whole = integers.Whole(layer, (0,), 5, 5, -100, 90, weights, 0, bias)
    x = rng.integers(-128, 128, (2, 4, 6, 5)).astype(np.int8)
    got = integers.run(whole, [x])
    padded = np.pad(x.astype(int), [(0, 0), (0, 0), (1, 1), (1, 1)])
    for n, o, y, z in np.ndindex(got.shape):
        first = o // (6 // groups) * (4 // groups)
        window = padded[n, first : first + 4 // groups, 2 * y : 2 * y + 3, 2 * z : 2 * z + 3]
        total = int((window * weights[o].astype(int)).sum()) + int(bias[o])
        assert got[n, o, y, z] == min(90, max(-100, total >> 5))


def test_a_sum_rounds_half_up_at_the_finer_scale():
    layer = region.Layer("sum", ("a", "b"), "y", ((1, 1, 1, 3),) * 2, (1, 1, 1, 3))
    whole = integers.Whole(layer, (1, 0), 1, 1, -127, 127, factors=(1, 0))
    a, b = np.array([[[[1, 2, 100]]]], np.int8), np.array([[[[1, -1, 100]]]], np.int8)
    assert integers.run(whole, [a, b]).tolist() == [[[[2, 2, 127]]]]


@pytest.mark.slow
def test_each_layer_is_near_its_float_self(whole):
    rows = whole.table()
    assert [row.kind for row in rows][:3] == ["convolution", "convolution", "sum"]
    assert all(row.sqnr > 20 for row in rows), rows
    assert all(row.shift >= 0 for row in rows)


def test_the_network_is_near_its_float_self(whole):
    inputs = random_inputs(whole.inputs, 100)
    (got,), (wanted,) = whole.reference(inputs), whole.float.reference(inputs)
    assert np.argmax(got) == np.argmax(wanted)
    noise = float(np.sum((got - wanted) ** 2)) / float(np.sum(wanted**2))
    assert 0 < noise < 0.01


def test_bounds_of_an_activation_may_be_infinite():
    layer = region.Layer("sum", ("a", "b"), "y", ((1, 1, 1, 2),) * 2, (1, 1, 1, 2), 0.0, math.inf)
    tensors = {name: np.full((1, 1, 1, 2), 3.0, "float32") for name in "aby"}
    ((whole,), _) = scales.choose([layer], tensors)
    assert (whole.low, whole.high) == (0, 127)


@pytest.mark.parametrize("size", [1e-3, 0.5, 1e4])
def test_a_sum_with_an_operand_that_is_never_used_is_possible(size):
    layer = region.Layer("sum", ("a", "b"), "y", ((1, 1, 1, 2),) * 2, (1, 1, 1, 2))
    tensors = {name: np.full((1, 1, 1, 2), size, "float32") for name in "ay"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ((whole,), _) = scales.choose([layer], tensors | {"b": np.zeros((1, 1, 1, 2), "float32")})
    a = integers.quantise(tensors["a"], whole.exponents[0])
    got = integers.restore(integers.run(whole, [a, np.zeros_like(a)]), whole.exponent)
    np.testing.assert_allclose(got, tensors["y"], rtol=0.01)


def test_of_operands_of_very_different_sizes_the_smaller_is_left_out_and_that_is_said():
    layer = region.Layer("sum", ("a", "b"), "y", ((1, 1, 1, 2),) * 2, (1, 1, 1, 2))
    tensors = {name: np.full((1, 1, 1, 2), 100.0, "float32") for name in "ay"}
    tensors["b"] = np.full((1, 1, 1, 2), 0.01, "float32")
    with pytest.warns(
        UserWarning, match="what b adds .at most 0.01 to at most 1e.02. is less than"
    ):
        ((whole,), _) = scales.choose([layer], tensors)
    assert whole.factors == (0, None)
    a, b = (integers.quantise(tensors[n], e) for n, e in zip("ab", whole.exponents, strict=True))
    got = integers.restore(integers.run(whole, [a, b]), whole.exponent)
    np.testing.assert_allclose(got, tensors["y"], rtol=0.01)


def test_the_share_of_values_that_are_cut_counts_none_that_fit():
    """A value at the very end of int8 is not cut."""
    layer = region.Layer("sum", ("a", "b"), "y", ((1, 1, 1, 4),) * 2, (1, 1, 1, 4))
    values = np.array([127, -127, 1, 2], "float32").reshape(1, 1, 1, 4)
    tensors = {"a": values, "b": np.zeros_like(values), "y": values}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (row,) = scales.table(*scales.choose([layer], tensors), tensors)
    assert row.cut == 0


def test_without_noise_there_is_no_ratio():
    layer = region.Layer("sum", ("a", "b"), "y", ((1, 1, 1, 1),) * 2, (1, 1, 1, 1))
    tensors = {"a": np.ones((1, 1, 1, 1), "float32"), "b": np.ones((1, 1, 1, 1), "float32")}
    tensors["y"] = 2 * tensors["a"]
    (row,) = scales.table(*scales.choose([layer], tensors), tensors)
    assert row.sqnr is None


@pytest.mark.slow
def test_without_samples_there_are_random_ones_and_a_warning():
    network = quantised(cnn.residual(16, 8))
    with pytest.warns(UserWarning, match="calibrated with 4 random inputs"):
        assert network.wholes


def test_calibration_data_are_cut_into_runs():
    network = cnn.residual()
    data = {"data": np.random.default_rng(0).standard_normal((3, 3, 16, 16))}
    runs = calibrate.check(network, data, "file")
    assert [run["data"].shape for run in runs] == [(1, 3, 16, 16)] * 3
    assert all(run["data"].dtype == np.float32 for run in runs)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({}, "no array 'data'"),
        ({"data": np.ones((2, 3, 16, 15))}, "'data' is 2x3x16x15, and the network takes 1x3x16x16"),
        ({"data": np.zeros((2, 3, 16, 16))}, "nothing but zeros"),
        ({"data": np.full((1, 3, 16, 16), np.inf)}, "no finite number"),
        ({"data": np.full((1, 3, 16, 16), 1e200)}, "no finite number of float32"),
        ({"data": np.empty((0, 3, 16, 16))}, "'data' is 0x3x16x16"),
        ({"data": np.full((1, 3, 16, 16), "a")}, "no finite number"),
    ],
)
def test_calibration_data_that_do_not_fit(data, told):
    with pytest.raises(UsageError) as raised:
        calibrate.check(cnn.residual(), data, "file")
    assert told in str(raised.value)


def test_a_bias_beyond_32_bits():
    layer = region.Layer(
        *("convolution", ("x",), "y", ((1, 1, 1, 1),), (1, 1, 1, 1)),
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
        scales.choose([layer], tensors)


def _constant(array: np.ndarray):
    from tvm import relax

    return relax.const(array.astype("float32"))
