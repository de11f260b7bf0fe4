"""LRN, MeanVarianceNormalization and LayerNormalization, in several dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from networks.in_tvm import assert_equal, run_in_tvm
from networks.onnx_operators import (
    assert_matches_evaluator,
    assert_matches_onnxruntime,
    floats,
    operator,
    operator_network,
)
from tvmtune.errors import TvmtuneError
from tvmtune.networks.onnx.evaluator import evaluator
from tvmtune.networks.onnx.network import OnnxNetwork

IMAGES = floats(2, 5, 4, 3)
DTYPES = pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 2e-3), ("float64", 1e-6)])


def test_local_responses_of_every_channel():
    pytest.importorskip("onnxruntime")
    options: dict[str, Any] = {"size": 3, "alpha": 0.5, "bias": 2.0}
    assert_matches_onnxruntime("LRN", {"x": IMAGES}, **options)
    network, given = operator_network("LRN", {"x": IMAGES}, **options)
    (found,) = evaluator(operator("LRN", {"x": IMAGES}, **options)).run(None, given)
    assert_equal([found], network.reference(given))


@DTYPES
def test_local_responses_in_other_types(dtype: str, tolerance: float):
    """Squares beyond the range of float16 do not vanish."""
    x = (IMAGES * 300).astype(dtype)
    assert_matches_evaluator("LRN", {"x": x}, size=3, tolerance=tolerance)


def test_local_responses_of_an_even_number_of_channels_reach_further_up():
    assert_matches_evaluator("LRN", {"x": IMAGES}, size=4, alpha=0.5)


def test_local_responses_of_rows():
    assert_matches_evaluator("LRN", {"x": IMAGES[:, :, 0]}, size=3, alpha=0.5)


def test_local_responses_of_volumes_are_refused():
    x = floats(1, 2, 3, 3, 3)
    model = operator("LRN", {"x": x}, size=3)
    info = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, x.shape)
    model.graph.output[0].CopyFrom(info)
    with pytest.raises(TvmtuneError, match="node 'the_node' .*has 5 axes; 3 or 4 are supported"):
        OnnxNetwork(model, name="net").to_relax()


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float16", 2e-3)])
def test_channels_get_mean_0_and_variance_1_unless_they_are_constant(dtype: str, tolerance: float):
    x = (100 + IMAGES).astype(dtype)
    x[:, 1] = 2
    model = operator("MeanVarianceNormalization", {"x": x})
    kind = onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", kind, x.shape))
    wide = x.astype("float64")
    centered = wide - wide.mean((0, 2, 3), keepdims=True)
    deviation = np.sqrt((centered**2).mean((0, 2, 3), keepdims=True))
    expected = (centered / (deviation + 1e-9)).astype(dtype)
    assert not expected[:, 1].any()
    assert_equal(run_in_tvm(OnnxNetwork(model, name="net"), {"x": x}), [expected], tolerance)


SHAPES = [((8,), None), ((8, 1), (8,)), ((1, 8), (8, 8)), ((2, 1, 8), (1, 8, 1)), ((), ())]


@pytest.mark.sweep
@pytest.mark.parametrize(("scale", "shift"), SHAPES)
@pytest.mark.parametrize("outputs", [["y"], ["y", "mean", "inverse"]])
def test_scale_and_shift_of_a_layer_may_have_fewer_axes_than_it_normalizes(
    outputs: list[str], scale: tuple[int, ...], shift: tuple[int, ...] | None
):
    inputs = {"x": floats(2, 8, 8), "scale": np.asarray(floats(*scale, seed=1))}
    if shift is not None:
        inputs["shift"] = np.asarray(floats(*shift, seed=2))
    assert_matches_evaluator("LayerNormalization", inputs, outputs=outputs, axis=1)


def test_batch_normalization_in_training_mode_is_refused():
    names = ("scale", "bias", "mean", "var")
    inputs: dict[str, Any] = {"x": IMAGES} | {name: np.ones(5, "float32") for name in names}
    outputs = ("y", "running mean", "running var")
    model = operator("BatchNormalization", inputs, outputs=outputs, training_mode=1)
    for info, shape in zip(model.graph.output, (IMAGES.shape, (5,), (5,)), strict=True):
        kind = onnx.TensorProto.FLOAT
        info.CopyFrom(onnx.helper.make_tensor_value_info(info.name, kind, shape))
    with pytest.raises(TvmtuneError, match="node 'the_node' .*in training mode: export"):
        OnnxNetwork(model, name="net").to_relax()
