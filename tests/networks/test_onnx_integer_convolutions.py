"""ConvInteger, as ONNX Runtime's dynamic quantization writes it, compared with onnx's evaluator."""

from __future__ import annotations

import numpy as np
import pytest

from networks.onnx_operators import assert_matches_evaluator

RNG = np.random.default_rng(0)
IMAGE = RNG.integers(0, 256, (2, 4, 9, 8), dtype=np.uint8)
WEIGHTS = RNG.integers(-128, 128, (6, 4, 3, 3), dtype=np.int8)
GROUPED = WEIGHTS[:, :2]


@pytest.mark.parametrize(
    ("weights", "zero", "options"),
    [
        (WEIGHTS, np.array(131, np.uint8), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
        (GROUPED, np.array(7, np.uint8), {"group": 2, "dilations": [1, 2]}),
    ],
    ids=["padding and strides", "groups and dilation"],
)
def test_padding_has_the_value_zero(weights, zero, options):
    """Not of a byte: its zero point is subtracted first."""
    given = {"x": IMAGE, "w": weights, "zero": zero}
    assert_matches_evaluator("ConvInteger", given, constant=("w",), tolerance=0.0, **options)


def test_weights_may_have_a_zero_point_for_each_output_channel():
    zeros = RNG.integers(100, 140, 6, dtype=np.uint8)
    weights = RNG.integers(0, 256, WEIGHTS.shape, dtype=np.uint8)
    given = {"x": IMAGE, "w": weights, "zero": np.array(3, np.uint8), "zeros": zeros}
    assert_matches_evaluator("ConvInteger", given, constant=("w", "zeros"), tolerance=0.0)


def test_zero_points_may_be_left_out():
    given = {"x": IMAGE, "w": WEIGHTS}
    assert_matches_evaluator("ConvInteger", given, constant=("w",), tolerance=0.0)
