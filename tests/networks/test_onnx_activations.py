"""Activations in other floating-point types than float32, which ONNX Runtime lacks."""

from __future__ import annotations

import numpy as np
import pytest

from networks.onnx_operators import assert_matches_evaluator, floats


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 2e-3), ("float64", 1e-12)])
@pytest.mark.parametrize("name", ["Elu", "Selu", "ThresholdedRelu"])
def test_activations_from_minus_infinity_on(name: str, dtype: str, tolerance: float):
    x = np.append(floats(30), -np.inf).astype(dtype)
    assert_matches_evaluator(name, {"x": x}, alpha=0.75, tolerance=tolerance)
