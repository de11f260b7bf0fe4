"""ScatterElements and ScatterND, with indices smaller than the data, repeated, or for whole rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from networks.in_tvm import assert_equal, run_in_tvm
from networks.onnx_operators import assert_matches_onnxruntime, floats, operator_network
from tvmtune.networks.onnx.network import OnnxNetwork


def integers(limit: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-limit, limit, shape)


@pytest.mark.sweep
@pytest.mark.parametrize("reduction", ["add", "none", "mul", "max", "min"])
@pytest.mark.parametrize("constant", [[], ["ids"]], ids=["computed", "constant"])
def test_elements_of_indices_smaller_than_the_data(reduction: str, constant: list[str]):
    ids = integers(5, 3, 2, 3)
    if reduction == "none":  # which of equal ones is last is undefined
        ids[:] = np.arange(2)[:, None] - 2
    inputs = {"x": floats(4, 5, 6), "ids": ids, "new": floats(3, 2, 3, seed=1)}
    assert_matches_onnxruntime(
        "ScatterElements", inputs, constant=constant, axis=1, reduction=reduction
    )


def scattered_rows(*, expanded: bool) -> tuple[OnnxNetwork, dict[str, np.ndarray]]:
    """Rows of 6 elements by an index of rows, constant, each repeated 6 times or with a change."""
    ids = np.repeat(integers(5, 9, 1), 6, axis=1)
    if not expanded:
        ids[0, 5] = (ids[0, 4] + 6) % 5
    inputs = {"x": floats(5, 6), "ids": ids, "new": floats(9, 6, seed=1)}
    return operator_network(
        "ScatterElements", inputs, constant=["ids"], axis=0, reduction="add", opset=18
    )


@pytest.mark.parametrize("expanded", [True, False])
def test_an_index_that_is_repeated_for_each_column_scatters_rows(expanded: bool):
    network, _ = scattered_rows(expanded=expanded)
    assert ("scatter_nd" in str(network.to_relax())) == expanded


@pytest.mark.parametrize("expanded", [True, False])
def test_scattered_rows_are_correct(expanded: bool):
    network, given = scattered_rows(expanded=expanded)
    assert_equal(run_in_tvm(network, given), network.reference(given))


@pytest.mark.parametrize(
    "ids", [[2, 3, 4], [0, 1, 2], [-3, -2, -1], [0, 1, 2, 3, 4, 5, 6]], ids=str
)
def test_an_assignment_to_consecutive_rows_is_a_concatenation(ids: list[int]):
    inputs = {
        "x": floats(7, 3),
        "ids": np.array(ids)[:, None],
        "new": floats(len(ids), 3, seed=1),
    }
    network, given = operator_network("ScatterND", inputs, constant=["ids"], opset=18)
    assert "scatter" not in str(network.to_relax())
    assert_equal(run_in_tvm(network, given), network.reference(given))


@pytest.mark.parametrize("ids", [[3, 2], [0, 2], [-1, 0]], ids=str)
def test_an_assignment_to_other_rows_stays_one(ids: list[int]):
    inputs = {"x": floats(7, 3), "ids": np.array(ids)[:, None], "new": floats(2, 3, seed=1)}
    network, given = operator_network("ScatterND", inputs, constant=["ids"], opset=18)
    assert "scatter_nd" in str(network.to_relax())
    assert_equal(run_in_tvm(network, given), network.reference(given))


def test_the_deprecated_operator():
    inputs: dict[str, Any] = {"x": floats(4, 6), "ids": integers(4, 2, 3) % 4, "new": floats(2, 3)}
    inputs["ids"][1] = (inputs["ids"][0] + 1) % 4
    assert_matches_onnxruntime("Scatter", inputs, axis=0, opset=10)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [("ScatterND", [(0, 1), (0, 3)]), ("ScatterElements", [(0, 3), (0, 3)])],
)
def test_no_indices_change_nothing(name: str, shapes: list[tuple[int, ...]]):
    ids, new = shapes
    inputs = {"x": floats(4, 3), "ids": np.zeros(ids, "int64"), "new": floats(*new)}
    network, given = operator_network(name, inputs, constant=["ids", "new"], opset=18)
    assert_equal(run_in_tvm(network, given), [given["x"]])
