"""ReverseSequence of ONNX, compared with onnx's evaluator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from kernels import agrees_with_reference
from networks.in_tvm import assert_equal, run_in_tvm
from networks.onnx_operators import assert_matches_evaluator, floats, operator
from tvmtune.errors import TvmtuneError
from tvmtune.networks.onnx.network import OnnxNetwork

STEPS, BATCH = 5, 4
SHAPES = {(0, 1): (STEPS, BATCH, 3), (1, 0): (BATCH, STEPS, 3)}
"""By time_axis and batch_axis."""
LENGTHS = np.array([5, 0, 3, 1])


def attributes_of(time: int, batch: int) -> dict[str, int]:
    return {"time_axis": time, "batch_axis": batch}


@pytest.mark.sweep
@pytest.mark.parametrize("axes", SHAPES, ids=str)
@pytest.mark.parametrize("constant", [[], ["lengths"]], ids=["computed", "constant"])
def test_lengths_that_are_constant_or_not(constant: list[str], axes: tuple[int, int]):
    inputs = {"x": floats(*SHAPES[axes]), "lengths": LENGTHS}
    options = attributes_of(*axes)
    assert_matches_evaluator("ReverseSequence", inputs, constant=constant, **options)


def test_by_default_time_is_the_first_axis():
    assert_matches_evaluator("ReverseSequence", {"x": floats(STEPS, BATCH), "lengths": LENGTHS})


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", ["int8", "float16", "float64", "int64", "uint8", "bool"])
def test_dtypes(dtype: str):
    x = (floats(STEPS, BATCH, 2) * 9).clip(0 if dtype == "uint8" else -9).astype(dtype)
    inputs = {"x": x, "lengths": LENGTHS}
    assert_matches_evaluator("ReverseSequence", inputs, tolerance=0.0)


def network_of(
    inputs: dict[str, np.ndarray], *, constant: tuple[str, ...] = (), **attributes: int
) -> OnnxNetwork:
    model = operator("ReverseSequence", inputs, constant=constant, **attributes)
    info = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, inputs["x"].shape)
    model.graph.output[0].CopyFrom(info)
    return OnnxNetwork(model, name="net")


def test_lengths_out_of_range_are_those_of_whole_or_empty_sequences():
    x = floats(STEPS, BATCH)
    wild = {"x": x, "lengths": np.array([1 << 40, -(1 << 40), STEPS + 1, -1])}
    expected = x.copy()
    expected[:, ::2] = x[::-1, ::2]
    assert_equal(run_in_tvm(network_of(wild), wild), [expected], 0.0)


def test_a_recurrent_layer_that_runs_backward(tmp_path: Path):
    text = """<ir_version: 8, opset_import: ["" : 18]>
    net (float[3,6,4] x, int64[3] lengths) => (float[3,6,4] y)
    {
      shown = Relu (x)
      turned = ReverseSequence <time_axis = 1, batch_axis = 0> (shown, lengths)
      step = Tanh (turned)
      back = ReverseSequence <time_axis = 1, batch_axis = 0> (step, lengths)
      y = Add (back, turned)
    }"""
    model = onnx.parser.parse_model(text)
    assert OnnxNetwork(model, name="net").ranges == {"lengths": (0, 5)}
    agrees_with_reference(model, tmp_path)


@pytest.mark.parametrize(
    ("lengths", "attributes", "cause"),
    [
        ([1, 2, 6, 0], {}, "its sequence_lens must be from 0 to 5, the number of steps"),
        ([1, 2, 3], {}, r"sequence_lens have the shape \(3,\), not \(4,\), the batch"),
        (LENGTHS, {"time_axis": 1}, "its batch_axis and its time_axis are both 1"),
    ],
    ids=str,
)
def test_others_are_refused(lengths: Any, attributes: dict[str, int], cause: str):
    inputs = {"x": floats(STEPS, BATCH), "lengths": np.array(lengths)}
    network = network_of(inputs, constant=("lengths",), **attributes)
    with pytest.raises(TvmtuneError, match=f"node 'the_node' .*{cause}"):
        network.to_relax()
