"""RoiAlign, compared with ONNX Runtime and with averages that are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from kernels import agrees_with_reference
from networks.in_tvm import assert_equal, run_in_tvm
from networks.onnx_operators import (
    assert_matches_onnxruntime,
    floats,
    operator,
    operator_network,
)
from tvmtune.errors import TvmtuneError

pytest.importorskip("onnxruntime")

REGIONS = np.array(
    [[8, 8, 24, 24], [0, 4, 30, 40], [-9, -3, 5, 9], [40, 50, 70, 90], [6, 6, 6, 6]], "float32"
)
"""In steps of a quarter of a pixel: inside, partly outside, and empty."""


@pytest.mark.parametrize(
    ("opset", "options"),
    [
        (16, {}),
        (16, {"coordinate_transformation_mode": "output_half_pixel"}),
        (10, {}),
    ],
)
def test_regions_of_several_images(opset: int, options: dict[str, Any]):
    inputs = {"x": floats(2, 3, 16, 12), "regions": REGIONS, "images": np.array([1, 0, 1, 0, 1])}
    sizes = {"output_height": 2, "output_width": 3, "spatial_scale": 0.25, "sampling_ratio": 3}
    assert_matches_onnxruntime("RoiAlign", inputs, opset=opset, **sizes, **options)


def test_pixels_are_half_a_step_from_their_edges():
    """The region is from 1.5 to 5.5 in the image, whose pixels are their columns' numbers."""
    x = np.broadcast_to(np.arange(16, dtype="float32"), (1, 1, 16, 16)).copy()
    inputs = {"x": x, "regions": REGIONS[:1], "images": np.array([0])}
    sizes = {"output_height": 2, "output_width": 2, "spatial_scale": 0.25, "sampling_ratio": 2}
    network, given = operator_network("RoiAlign", inputs, opset=16, **sizes)
    assert_equal(run_in_tvm(network, given), [np.array([[[[2.5, 4.5]] * 2]], "float32")])


@pytest.mark.parametrize(
    ("options", "reason"),
    [({}, "its sampling_ratio is 0"), ({"mode": "max", "sampling_ratio": 2}, "the mode 'max'")],
)
def test_what_is_refused(options: dict[str, Any], reason: str):
    inputs = {"x": floats(1, 3, 16, 12), "regions": REGIONS[:1], "images": np.array([0])}
    network, _ = operator_network("RoiAlign", inputs, opset=16, **options)
    with pytest.raises(TvmtuneError, match=f"node 'the_node' .*{reason}"):
        network.to_relax()


@pytest.mark.slow
def test_constant_regions_stay_in_their_order(tmp_path: Path):
    """Each sample reads all four corners of its region, so that weights' re-ordering does not apply."""
    inputs = {"x": floats(1, 3, 16, 12), "regions": REGIONS[:2], "images": np.array([0, 0])}
    sizes = {"output_height": 2, "output_width": 2, "spatial_scale": 0.25, "sampling_ratio": 2}
    model = operator("RoiAlign", inputs, constant=("regions", "images"), **sizes)
    info = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (2, 3, 2, 2))
    model.graph.output[0].CopyFrom(info)
    agrees_with_reference(model, tmp_path)
