"""The check in a library: correct outputs pass, every kind of wrong output fails."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from tvm import relax

from tvmtune.accuracy import relative_error
from tvmtune.bench.verify import SAMPLES, compare, make_check, run_check, sample_places
from tvmtune.errors import TvmtuneError
from tvmtune.networks.inputs import random_inputs
from tvmtune.types import TensorSpec


class Fake:
    """A network that computes ``function(x)``, and its library at the same time."""

    def __init__(self, function, shape=(8, 3), dtype="float32", rounded=False):
        self.function, self.rounded = function, rounded
        self.inputs = (TensorSpec("x", shape, dtype),)
        outputs = function(np.zeros(shape, dtype))
        self.outputs = tuple(
            TensorSpec(f"y{i}", y.shape, y.dtype.name) for i, y in enumerate(outputs)
        )

    def to_relax(self):
        """With outputs of the same types; integers are rounded from floats if :attr:`rounded`."""
        builder = relax.BlockBuilder()
        kinds = [relax.TensorType(spec.shape, spec.dtype) for spec in self.outputs]
        floats = [relax.TensorType(spec.shape, "float32") for spec in self.outputs]
        given = floats if self.rounded else kinds
        params = [relax.Var(f"p{n}", kind) for n, kind in enumerate(given)]
        with builder.function("main", params):
            with builder.dataflow():
                pairs = zip(params, self.outputs, strict=True)
                cast = [relax.op.astype(p, s.dtype) if self.rounded else p for p, s in pairs]
                output = builder.emit_output(relax.Tuple([builder.emit(each) for each in cast]))
            builder.emit_func_output(output)
        return builder.finalize()

    def reference(self, inputs):
        return self.function(inputs["x"])

    run = reference


def verdict(right, wrong, **options):
    """Check the library ``wrong`` against the network ``right``."""
    check = json.loads(json.dumps(make_check(Fake(right, **options))))
    return run_check(Fake(wrong, **options), check)


def test_the_error_is_relative_to_the_largest_value():
    want = np.array([1.0, -4.0, 0.001])
    assert relative_error(want, want) == 0
    near = np.array([1.0, -4.0, 0.003])
    assert relative_error(near, want) == pytest.approx(0.0005)
    assert relative_error(near, want, scale=8) == pytest.approx(0.00025)
    assert relative_error(np.array([0.5]), np.array([0.0])) == 0.5, "zeros: absolutely"
    assert relative_error(np.array([np.nan, 1]), np.array([1.0, 1])) == np.inf
    assert relative_error(np.array([np.inf, 1]), np.array([np.inf, 1])) == 0
    assert relative_error(np.array([-np.inf, 1]), np.array([np.inf, 1])) == np.inf
    assert relative_error(np.array([]), np.array([])) == 0


def test_the_same_function_passes():
    result = verdict(lambda x: [x * 2, x.sum(0)], lambda x: [x * 2, x.sum(0)])
    assert result.passed
    assert result.error == 0
    assert [output.name for output in result.outputs] == ["y0", "y1"]
    assert str(result).startswith("right")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda x: [x * 2.01], "'y0' is off by"),
        (lambda x: [x.T * 2], "is float32 [3, 8] instead of float32 [8, 3]"),
        (lambda x: [(x * 2).astype("float64")], "is float64 [8, 3] instead of"),
        (lambda x: [np.where(x > 2, np.nan, x * 2).astype("float32")], "NaN or infinity"),
        (lambda x: [x / np.float32(0)], "NaN or infinity"),
        (lambda x: [x * 2, x], "2 outputs instead of 1"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_wrong_function_fails_and_says_why(wrong, why):
    result = verdict(lambda x: [x * 2], wrong, shape=(8, 3))
    assert not result.passed
    assert why in str(result)


def test_outputs_of_denormal_numbers_are_named_as_the_cause():
    fading = np.float32(1e-41)
    result = verdict(lambda x: [x * fading], lambda x: [x * np.float32(1.1e-41)])
    assert not result.passed
    assert "(denormal numbers have few digits: are the weights trained?)" in str(result)


def test_an_error_for_the_second_input_alone_fails():
    right = Fake(lambda x: [x * 2])
    check = json.loads(json.dumps(make_check(right)))
    first = random_inputs(right.inputs, check["seed"])["x"]
    wrong = Fake(lambda x: [x * 2 if np.array_equal(x, first) else x * np.float32(2.01)])
    result = run_check(wrong, check)
    assert not result.passed
    assert result.error == pytest.approx(0.005, rel=0.01)


def test_rounding_errors_pass_and_larger_ones_fail():
    assert verdict(lambda x: [x], lambda x: [x * np.float32(1.00005)]).passed
    assert not verdict(lambda x: [x], lambda x: [x * np.float32(1.0005)]).passed


def test_a_library_that_ignores_its_inputs_fails():
    network = Fake(lambda x: [x])
    check = make_check(network)
    kept = network.run({"x": np.random.RandomState(0).standard_normal((8, 3)).astype("float32")})
    result = run_check(Fake(lambda x: kept), check)
    assert not result.passed
    assert "different inputs give the same outputs" in str(result)


@pytest.mark.parametrize("constant", [0, 1])
def test_a_network_that_ignores_its_inputs_passes_with_a_warning(constant):
    result = verdict(lambda x: [x * 0 + constant], lambda x: [x * 0 + constant])
    assert result.passed
    assert "the reference's output does not depend on the input" in str(result)
    assert "cannot see errors" in result.to_json()["warning"]


def test_each_output_has_to_depend_on_the_input_if_the_reference_does():
    def right(x):
        return [x * 0, x * 2]

    result = verdict(right, right)
    assert result.passed
    assert "the check cannot see errors of y0" in str(result)
    check = make_check(Fake(right))
    kept = Fake(right).run(
        {"x": np.random.RandomState(0).standard_normal((8, 3)).astype("float32")}
    )
    stuck = run_check(Fake(lambda x: [x * 0 if (x == kept[1] / 2).all() else x, kept[1]]), check)
    assert stuck.error > 1, "compared with the reference for other inputs"
    assert "output 'y1' is the same for different inputs" in str(stuck)


def test_checks_of_earlier_versions_tell_only_whether_any_output_varies():
    check = make_check(Fake(lambda x: [x * 0, x]))
    for entry in check["outputs"]:
        del entry["varies"]
    result = run_check(Fake(lambda x: [x * 0, x]), check)
    assert result.passed
    assert result.warning == ""


def test_infinities_must_match_the_reference():
    def masked(x):
        return [np.where(x > 0, x, -np.inf).astype("float32")]

    assert verdict(masked, masked).passed
    assert not verdict(masked, lambda x: [x]).passed


def test_integers_and_booleans():
    def classes(x):
        return [x.argmax(1), x > 0]

    assert verdict(classes, classes).passed
    assert not verdict(classes, lambda x: [x.argmax(1) + 1, x > 0]).passed
    assert not verdict(classes, lambda x: [x.argmax(1), x <= 0]).passed


def test_indices_are_compared_exactly():
    """The neighbor of one of 50,000 tokens is another token."""

    def token(x):
        return [x.argmax(0) + 49_000]

    assert verdict(token, token).passed
    wrong = verdict(token, lambda x: [token(x)[0] + (np.arange(3) == 1)])
    assert not wrong.passed
    assert wrong.error == 1.0
    assert wrong.reasons == ("output 'y0' is off by 1.0e+00",)


def test_integers_that_a_quantized_network_chooses_may_differ_at_some_places():
    """Two runtimes round differently, and so find other classes where two are nearly as likely."""

    other = np.arange(200)
    moved = np.where(other < 12, 999, other)

    class Quantized(Fake):
        computes = "int8"
        rounding_runs = (([other], [moved]), ([other], [other]))

        def to_relax(self):
            builder = relax.BlockBuilder()
            x = relax.Var("x", relax.TensorType((200, 7), "float32"))
            with builder.function("main", [x]):
                with builder.dataflow():
                    result = builder.emit_output(relax.op.argmax(x, 1))
                builder.emit_func_output(result)
            return builder.finalize()

    def classes(x):
        return [(x.reshape(-1) * 1e6).astype(np.int64) % 1000]

    def changed(every):
        return lambda x: [np.where(np.arange(200) % every == 0, 1001, classes(x)[0])]

    network = Quantized(classes, (200, 1))
    check = json.loads(json.dumps(make_check(network)))
    assert check["outputs"][0]["counts"] is True
    assert check["outputs"][0]["tolerance"] == pytest.approx(0.12)
    right = run_check(Fake(changed(10), (200, 1)), check)
    assert right.passed
    assert right.error == pytest.approx(0.1)
    wrong = run_check(Fake(changed(5), (200, 1)), check)
    assert not wrong.passed
    assert wrong.reasons == ("output 'y0' has other values at 20% of the places",)
    assert "share of values that differ = 2.0e-01" in str(wrong)


@pytest.mark.parametrize(
    ("apart", "tolerance", "warns"),
    [(0.01, 0.1, False), (0.2, 0.4, False), (0.7, 0.95, True), (np.inf, 0.1, False)],
)
def test_a_tolerance_is_below_the_error_of_zeros_whatever_runtimes_differ_by(
    apart, tolerance, warns
):
    def double(x):
        return [2 * x]

    network = Fake(double)
    network.computes = "int8"
    one = np.ones((8, 3), "float32")
    network.rounding_runs = [([one + np.float32(apart)], [one])]
    check = make_check(network)
    assert check["outputs"][0]["tolerance"] == pytest.approx(tolerance)
    result = run_check(Fake(double), check)
    assert result.passed
    assert ("gross errors only" in str(result)) == warns
    assert not run_check(Fake(lambda x: [0 * x]), check).passed


def test_large_integers_are_compared_exactly():
    def large(x):
        return [(x > 0) + np.int64(2) ** 60]

    assert verdict(large, large).passed
    assert not verdict(large, lambda x: [large(x)[0] + 1]).passed


def test_integers_that_are_rounded_from_floats_have_a_tolerance():
    def rounded(x):
        return [(x * 1e6).astype(np.int32)]

    result = verdict(rounded, lambda x: [rounded(x)[0] + 1], rounded=True)
    assert result.passed
    assert 0 < result.error < 1e-4


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_floats_keep_their_bits(dtype):
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype

    def narrow(x):
        return [x.astype(kind)]

    result = verdict(narrow, narrow)
    assert result.passed
    assert result.error == 0


def test_a_large_output_is_sampled_evenly():
    places = sample_places(1_000_000, 0)
    assert len(places) <= SAMPLES
    assert len(places) > 0.99 * SAMPLES
    assert (np.diff(places) > 0).all()
    assert (np.histogram(places, 10, (0, 1_000_000))[0] > 300).all()
    assert (sample_places(1_000_000, 0) == places).all()
    assert len(sample_places(SAMPLES, 0)) == SAMPLES

    def large(x):
        return [np.tile(x, (100, 100))]

    check = make_check(Fake(large))
    assert len(json.dumps(check)) < 30_000
    assert run_check(Fake(large), check).passed
    assert not verdict(large, lambda x: [large(x)[0] * 1.01]).passed


@pytest.mark.slow
def test_a_nan_between_the_samples_is_detected():
    def large(x):
        return [np.tile(x, (100, 100))]

    def spoiled(x):
        y = large(x)
        free = np.setdiff1d(np.arange(y[0].size), sample_places(y[0].size, 0))
        y[0].reshape(-1)[free[0]] = np.nan
        return y

    assert "NaN" in str(verdict(large, spoiled))


def test_a_reference_without_a_finite_value_proves_nothing():
    result = verdict(lambda x: [x * np.float32(np.nan)], lambda x: [x * np.float32(np.nan)])
    assert not result.passed
    assert "cannot be checked: no value of the reference is finite" in str(result)


def test_a_damaged_check_gives_one_message():
    with pytest.raises(TvmtuneError, match="check is damaged"):
        compare([np.zeros(3)], {"outputs": [{"name": "y"}], "seed": 0, "varies": True})
