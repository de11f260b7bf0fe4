"""LpNormalization, compared with ONNX Runtime: onnx's evaluator adds values for the norm of order 1."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from networks.in_tvm import assert_equal, run_in_tvm
from networks.onnx_operators import assert_matches_onnxruntime, floats, operator
from tvmtune.errors import TvmtuneError
from tvmtune.networks.onnx.network import OnnxNetwork

pytest.importorskip("onnxruntime")

X = floats(3, 4, 5)
X[:, 1], X[2] = 0, 0


@pytest.mark.sweep
@pytest.mark.parametrize("axis", [-1, 0, 1, -3])
@pytest.mark.parametrize("order", [1, 2])
def test_norms_along_every_axis(order: int, axis: int):
    assert_matches_onnxruntime("LpNormalization", {"x": X}, p=order, axis=axis)


def test_by_default_vectors_along_the_last_axis_have_length_1():
    assert_matches_onnxruntime("LpNormalization", {"x": X})


@pytest.mark.sweep
@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 1e-3), ("float64", 1e-12)])
@pytest.mark.parametrize("opset", [22, 18])
def test_dtypes(opset: int, dtype: str, tolerance: float):
    inputs = {"x": X.astype(dtype)}
    assert_matches_onnxruntime("LpNormalization", inputs, tolerance=tolerance, opset=opset)


def test_squares_beyond_the_range_of_float16():
    """Of ONNX Runtime's float16 results, some are 0: expected are those in float32."""
    x = (X * 1000).astype("float16")
    model = operator("LpNormalization", {"x": x})
    kind = onnx.TensorProto.FLOAT16
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", kind, x.shape))
    wide = x.astype("float32")
    norms = np.sqrt((wide * wide).sum(-1, keepdims=True))
    expected = (wide / np.where(norms == 0, 1, norms)).astype("float16")
    assert_equal(run_in_tvm(OnnxNetwork(model, name="net"), {"x": x}), [expected], 1e-3)


def test_constants_are_normalized_by_their_magnitudes():
    text = """<ir_version: 8, opset_import: ["" : 18]>
    net (float[4] x) => (float[4] y)
    <float[4] c = {1.0, -3.0, 0.0, 4.0}>
    {
      shape = Shape (x)
      all = Expand (c, shape)
      unit = LpNormalization <p = 1> (all)
      y = Add (x, unit)
    }"""
    network = OnnxNetwork(onnx.parser.parse_model(text), name="net")
    found = run_in_tvm(network, {"x": np.zeros(4, "float32")})
    assert_equal(found, [np.array([0.125, -0.375, 0, 0.5], "float32")])


def test_other_orders_are_refused():
    model = operator("LpNormalization", {"x": X}, p=3)
    info = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, X.shape)
    model.graph.output[0].CopyFrom(info)
    with pytest.raises(TvmtuneError, match="node 'the_node' .*p=3 is not supported; 1 and 2 are"):
        OnnxNetwork(model, name="net").to_relax()
