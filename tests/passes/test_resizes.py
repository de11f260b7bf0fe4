"""Resizes to the same size are dropped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from kernels import error
from tvmtune import api
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.passes import resizes
from tvmtune.passes.bindings import bindings, operator_of
from tvmtune.runtime.library import Library


def resized(size: tuple[int, int], **attributes: str) -> OnnxNetwork:
    """The sum of an image of 6x8 pixels, resized, and of one of the new size."""
    nodes = [
        helper.make_node("Resize", ["x", "", "", "sizes"], ["r"], **attributes),
        helper.make_node("Add", ["r", "other"], ["y"]),
    ]
    shapes = {"x": (1, 3, 6, 8), "other": (1, 3, *size), "y": (1, 3, *size)}
    x, other, y = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()
    )
    sizes = numpy_helper.from_array(np.array([1, 3, *size]), "sizes")
    graph = helper.make_graph(nodes, "resize", [x, other], [y], [sizes])
    opsets = [helper.make_opsetid("", 18)]
    return OnnxNetwork(helper.make_model(graph, opset_imports=opsets, ir_version=9), name="resize")


@pytest.mark.sweep
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners", "asymmetric"])
def test_a_resize_to_the_same_size_is_dropped(mode: str, coordinates: str, tmp_path: Path):
    network = resized((6, 8), mode=mode, coordinate_transformation_mode=coordinates)
    plan = api.plan(network)
    called = [operator_of(each.value) for each in bindings(plan.prepared.graph)]
    assert called == ["add"]
    library = Library.open(api.compile(plan, tmp_path / "resize.so").path)
    inputs = library.random_inputs(0)
    assert error(library.run(inputs)[0], network.reference(inputs)[0]) < 1e-6


@pytest.mark.parametrize("coordinates", ["tf_half_pixel_for_nn", "tf_crop_and_resize"])
def test_a_resize_that_moves_pixels_stays(coordinates: str):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 3, 6, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            made = relax.op.image.resize2d(x, (6, 8), coordinate_transformation_mode=coordinates)
            result = builder.emit_output(builder.emit(made))
        builder.emit_func_output(result)
    mod = builder.get()
    assert resizes.drop(mod) is mod


def test_other_resizes_stay(tmp_path: Path):
    network = resized((6, 9), mode="linear")
    plan = api.plan(network)
    assert "image.resize2d" in [operator_of(each.value) for each in bindings(plan.prepared.graph)]
    library = Library.open(api.compile(plan, tmp_path / "resize.so").path)
    inputs = library.random_inputs(0)
    assert error(library.run(inputs)[0], network.reference(inputs)[0]) < 1e-5
