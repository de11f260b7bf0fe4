"""Resize of integers: linear as ONNX Runtime truncates it, cubic as onnx's evaluator rounds it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from networks.in_tvm import assert_equal, run_in_tvm
from networks.onnx_operators import assert_matches_evaluator, operator_network

pytest.importorskip("onnxruntime")

DTYPES = ["uint8", "int8", "int32"]


def integers(dtype: str, *shape: int) -> np.ndarray:
    """Of the whole range of bytes."""
    first = 0 if dtype == "uint8" else -128
    return np.random.default_rng(0).integers(first, first + 256, shape).astype(dtype)


CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "channels last": ((1, 5, 5, 3), {"sizes": np.array([1, 9, 9, 3])}),
    "by a fraction": ((1, 3, 5, 5), {"scales": np.array([1, 1, 1.5, 1.5], "float32")}),
    "by a whole number": ((1, 3, 5, 5), {"sizes": np.array([1, 3, 10, 15])}),
}


def inputs_of(case: str, dtype: str) -> tuple[dict[str, Any], list[str]]:
    """The inputs of a case, and which of them are constant."""
    shape, size = CASES[case]
    return {"x": integers(dtype, *shape), "roi": None, "scales": None} | size, [*size]


@pytest.mark.sweep
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_interpolation_is_within_one_of_onnxruntime(dtype: str, case: str):
    """It rounds weights for channels that come last, and sums in another order."""
    inputs, constant = inputs_of(case, dtype)
    network, given = operator_network("Resize", inputs, constant=constant, mode="linear")
    (expected,), (found,) = network.reference(given), run_in_tvm(network, given)
    assert found.dtype == expected.dtype
    differences = np.abs(found.astype("int64") - expected.astype("int64"))
    assert differences.max() <= 1
    assert differences.mean() < 0.2


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_linear_interpolation_truncates(layout: str):
    row = np.array([0, 10, 251], "uint8").reshape(
        (1, 1, 1, 3) if layout == "NCHW" else (1, 3, 1, 1)
    )
    sizes = np.array([1, 1, 1, 6] if layout == "NCHW" else [1, 6, 1, 1])
    inputs = {"x": row, "roi": None, "scales": None, "sizes": sizes}
    network, given = operator_network("Resize", inputs, constant=["sizes"], mode="linear")
    (found,) = run_in_tvm(network, given)
    assert found.reshape(-1).tolist() == [0, 2, 7, 70, 190, 251]
    assert_equal([found], network.reference(given), 0)


@pytest.mark.sweep
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_cubic_interpolation_rounds_and_saturates(dtype: str, case: str):
    inputs, constant = inputs_of(case, dtype)
    assert_matches_evaluator("Resize", inputs, constant=constant, mode="cubic", tolerance=0)


def test_linear_interpolation_of_what_onnxruntime_lacks_is_rounded():
    inputs = {"x": integers("int16", 1, 3, 5, 5), "roi": None, "scales": None}
    inputs["sizes"] = np.array([1, 3, 10, 10])
    assert_matches_evaluator("Resize", inputs, constant=["sizes"], mode="linear", tolerance=0)
