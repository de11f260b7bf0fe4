"""TopK, whose number is an attribute before opset 10, and whose order may be open since opset 11."""

from __future__ import annotations

import numpy as np
import pytest

from networks.in_tvm import assert_equal, run_in_tvm
from networks.onnx_operators import (
    assert_matches_onnxruntime,
    floats,
    operator,
    operator_network,
)
from tvmtune.errors import TvmtuneError
from tvmtune.networks.onnx.network import OnnxNetwork

pytest.importorskip("onnxruntime")

X, THREE = floats(4, 6), np.array([3])


def test_the_number_is_an_attribute():
    assert_matches_onnxruntime("TopK", {"x": X}, outputs=["y", "i"], opset=9, k=3, axis=0)


@pytest.mark.parametrize("opset", [10, 11])
def test_the_number_is_an_input(opset: int):
    inputs = {"x": X, "k": THREE}
    assert_matches_onnxruntime("TopK", inputs, constant=["k"], outputs=["y", "i"], opset=opset)


def test_the_smallest():
    inputs = {"x": X, "k": THREE}
    assert_matches_onnxruntime("TopK", inputs, constant=["k"], outputs=["y", "i"], largest=0)


def test_results_that_need_not_be_sorted_are():
    inputs = {"x": X, "k": THREE}
    network, given = operator_network("TopK", inputs, constant=["k"], outputs=["y", "i"], sorted=0)
    values, places = run_in_tvm(network, given)
    assert_equal([values], [-np.sort(-X)[:, :3]])
    assert_equal([values], [np.take_along_axis(X, places, 1)])


def test_no_elements_at_all_are_refused():
    inputs = {"x": X, "k": np.array([0])}
    network = OnnxNetwork(operator("TopK", inputs, constant=["k"], outputs=["y", "i"]), name="net")
    with pytest.raises(TvmtuneError, match="node 'the_node' .*its k is 0, not from 1 to 6"):
        network.to_relax()
