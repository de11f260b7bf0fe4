"""Pads become the padding of convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from kernels import prepared
from tvmtune import api, networks
from tvmtune.accuracy import relative_error
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.runtime.library import Library


def padded(
    pads: list[int],
    *,
    axes: list[int] | None = None,
    own: tuple[int, ...] = (0, 0, 0, 0),
    kernel: int = 3,
    rank: int = 2,
    **options: Any,
) -> onnx.ModelProto:
    """``x`` (1, 8, 9, ...), padded, through a convolution with stride 2."""
    rng = np.random.default_rng(0)
    constants = {
        "pads": np.array(pads, "int64"),
        "value": np.float32(options.pop("value", 0)),
        "w": rng.normal(size=(4, 8 + options.pop("more", 0), *[kernel] * rank)).astype("float32"),
    }
    inputs = ["x", "pads", "value"]
    if axes is not None:
        constants["axes"] = np.array(axes, "int64")
        inputs.append("axes")
    nodes = [
        helper.make_node("Pad", inputs, ["p"], **options),
        helper.make_node("Conv", ["p", "w"], ["y"], pads=own, strides=[2] * rank),
    ]
    graph = helper.make_graph(
        nodes,
        "padded",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, *[9] * rank])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return onnx.shape_inference.infer_shapes(model)


FOLDED = {
    "TensorFlow's": (padded([0, 0, 0, 0, 0, 0, 1, 1]), (0, 0, 1, 1)),
    "beside its own": (padded([0, 0, 1, 2, 0, 0, 0, 3], own=(1, 0, 0, 1)), (2, 2, 0, 4)),
    "of two axes": (padded([1, 2, 3, 4], axes=[-1, 2]), (2, 1, 4, 3)),
    "of a signal": (padded([0, 0, 2, 0, 0, 1], own=(0, 0), rank=1), (2, 1)),
    "of frames": (padded([0, 0, 1, 0, 2, 0, 0, 0, 1, 1], own=(0,) * 6, rank=3), (1, 0, 2, 0, 1, 1)),
}
KEPT = {
    "channels": padded([0, 1, 0, 0, 0, 0, 0, 0], more=1),
    "ones": padded([0, 0, 1, 1, 0, 0, 1, 1], value=1),
    "reflected": padded([0, 0, 1, 1, 0, 0, 1, 1], mode="reflect"),
    "cropped": padded([0, 0, -1, -1, 0, 0, 1, 1]),
}


def assert_right(model: onnx.ModelProto, tmp_path: Any) -> None:
    assert_computed(OnnxNetwork(model, name="net"), tmp_path)


def assert_computed(network: Any, tmp_path: Any) -> None:
    """A library computes what the reference does."""
    library = Library.open(api.compile(api.plan(network), tmp_path / "lib.so").path)
    inputs = random_inputs(network.inputs, 3)
    (got,), (wanted,) = library.run(inputs), network.reference(inputs)
    assert relative_error(got, wanted) < 1e-5


def convolutions(model: onnx.ModelProto) -> list[Any]:
    """Their paddings, and whether a pad is left, as "pad"."""
    graph = prepared(model).graph
    found: list[Any] = []
    for block in graph["main"].body.blocks:
        for binding in block.bindings:
            name = str(getattr(getattr(binding.value, "op", None), "name", ""))
            if "nn.conv" in name:
                found.append(tuple(int(n) for n in binding.value.attrs.padding))
            elif name == "relax.nn.pad" or "call_tir" in name:
                found.append("pad")
    return found


@pytest.mark.sweep
@pytest.mark.parametrize(("model", "padding"), FOLDED.values(), ids=FOLDED)
def test_zeros_around_images_are_folded(model, padding, tmp_path):
    assert convolutions(model) == [padding]
    assert_right(model, tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("model", KEPT.values(), ids=KEPT)
def test_other_pads_are_kept(model, tmp_path):
    assert "pad" in convolutions(model)
    assert_right(model, tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("widths", "own"), [((-1, -1, -1, -1), 1), ((1, -1, 0, 0), 1), ((-1, -2, 0, 1), 0)], ids=str
)
def test_pixels_are_dropped_before_a_convolution_adds_zeros(widths, own, tmp_path):
    """PyTorch's pads of negative widths: zeros do not become pixels again."""
    torch = pytest.importorskip("torch")
    from networks.torch_models import function_network

    weight = torch.randn(4, 8, 3, 3, generator=torch.Generator().manual_seed(0))

    def convolution(x: Any) -> Any:
        padded = torch.nn.functional.pad(x, widths)
        return torch.nn.functional.conv2d(padded, weight, stride=2, padding=own)

    assert_computed(function_network(convolution, torch.zeros(1, 8, 9, 9)), tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("other", [0.02, 0.03])
def test_quantized_pads_are_folded_if_they_do_not_change_the_scale(other, tmp_path):
    rng = np.random.default_rng(0)
    constants = {
        "scale": np.float32(0.02),
        "other": np.float32(other),
        "zero": np.uint8(120),
        "pads": np.array([0, 0, 0, 0, 0, 0, 1, 1], "int64"),
        "w": rng.normal(size=(16, 8, 3, 3)).astype("float32"),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["x_q"]),
        helper.make_node("DequantizeLinear", ["x_q", "scale", "zero"], ["x_f"]),
        helper.make_node("Pad", ["x_f", "pads"], ["p"]),
        helper.make_node("QuantizeLinear", ["p", "other", "zero"], ["p_q"]),
        helper.make_node("DequantizeLinear", ["p_q", "other", "zero"], ["p_f"]),
        helper.make_node("Conv", ["p_f", "w"], ["y"], strides=[2, 2]),
    ]
    graph = helper.make_graph(
        nodes,
        "padded",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 9, 9])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16, 4, 4])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    folded = (0, 0, 1, 1) if other == constants["scale"] else (0, 0, 0, 0)
    assert [each for each in convolutions(model) if each != "pad"] == [folded]
    assert_right(model, tmp_path)


def test_pads_of_quantized_networks_leave_no_kernel(tmp_path):
    """As in Keras's MobileNets."""
    pytest.importorskip("ai_edge_litert.interpreter")
    from networks.tflite_models import VALID, QuantizedBuilder

    g = QuantizedBuilder()
    x, widths = g.data((1, 9, 9, 8), 0.02, 5), g.constant([[0, 0], [0, 1], [0, 1], [0, 0]], "int32")
    y = g.apply("PAD", [x, widths], (1, 10, 10, 8), 0.02, 5)
    options = {"strideW": 2, "strideH": 2, "padding": VALID}
    y = g.layer("CONV_2D", y, 0, (16, 3, 3, 8), (1, 4, 4, 16), 0.1, **options)
    path = tmp_path / "net.tflite"
    path.write_bytes(g.content(y))
    network = networks.load(str(path))
    plan = api.plan(network)
    assert not any("pad" in task.name for task in plan.tasks)
    library = Library.open(api.compile(plan, tmp_path / "lib.so").path)
    inputs = random_inputs(network.inputs, 3)
    (got,), (wanted,) = library.run(inputs), network.reference(inputs)
    assert np.abs(got.astype(int) - wanted.astype(int)).max() <= 1
    assert np.ptp(wanted.astype(int)) > 10
