"""Taps that read nothing but padding are dropped, and the results stay the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm import tirx

from kernels import agrees_with_reference, convolution_of, one_conv, prepared, relax_conv
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.passes import unread_taps
from tvmtune.passes.bindings import bindings, operator_of


def kernel_of(model: onnx.ModelProto) -> tuple[int, ...]:
    """Height and width of the kernel of its prepared convolution."""
    height, width, *_ = convolution_of(prepared(model)).args[1].ty.shape
    return int(height), int(width)


def dilated(rate: int, size: int = 14, **options) -> onnx.ModelProto:
    return one_conv((1, 16, size, size), dilation=rate, pads=(rate,) * 4, **options)


@pytest.mark.parametrize(
    ("model", "kernel"),
    [
        (dilated(14), (1, 1)),
        (dilated(36), (1, 1)),
        (dilated(13), (3, 3)),
        (dilated(36, groups=16), (1, 1)),
        (dilated(7, size=14, stride=2), (3, 3)),
        (dilated(14, size=14, stride=2), (1, 1)),
        (one_conv((1, 16, 6, 40), dilation=12, pads=(12,) * 4), (1, 3)),
        (one_conv((1, 16, 14, 14), kernel=5, dilation=7, pads=(14,) * 4), (3, 3)),
        (one_conv((1, 16, 4, 4), pads=(3, 3, 0, 0)), (3, 3)),
        (one_conv((1, 16, 4, 4), kernel=1, pads=(5, 5, 5, 5)), (1, 1)),
    ],
    ids=[
        *("as large as the image", "larger", "smaller", "grouped", "strided", "strided and large"),
        *("low images", "the outer taps", "all taps read", "nothing to drop"),
    ],
)
def test_what_is_left_of_the_kernel(model, kernel):
    assert kernel_of(model) == kernel


@pytest.mark.sweep
@pytest.mark.parametrize(
    "model",
    [
        dilated(36),
        dilated(14, stride=2),
        one_conv((1, 16, 6, 40), dilation=12, pads=(12,) * 4),
        one_conv((1, 16, 3, 20), dilation=12, pads=(20, 12, 15, 12)),
        one_conv((2, 8, 14, 14), kernel=5, dilation=7, pads=(14,) * 4, tail=("norm", "relu")),
    ],
    ids=["1x1", "strided", "one axis", "uneven padding", "outer taps"],
)
def test_the_results_are_those_of_the_whole_kernel(tmp_path, model):
    agrees_with_reference(model, tmp_path)


@pytest.mark.parametrize("rank", [1, 3])
def test_convolutions_of_sequences_and_volumes_lose_them_too(tmp_path, rank):
    weight = np.ones((4, 4, *(3,) * rank), "float32")
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[9] * 2 * rank, dilations=[9] * rank)],
        "conv",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4, *(8,) * rank))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 4, *(8,) * rank))],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    dropped = unread_taps.drop(OnnxNetwork(model, name="conv").to_relax())
    (conv,) = (b.value for b in bindings(dropped) if "conv" in operator_of(b.value))
    assert [int(extent) for extent in conv.args[1].ty.shape] == [4, 4, *(1,) * rank]
    agrees_with_reference(model, tmp_path)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_they_are_dropped_in_either_layout_and_in_half_precision(layout):
    mod, weight = relax_conv(layout, dilation=9)
    (call,) = (b.value for b in bindings(unread_taps.drop(mod)) if operator_of(b.value))
    center = weight[1:2, 1:2] if layout == "NHWC" else weight[:, :, 1:2, 1:2]
    np.testing.assert_array_equal(call.args[1].value.numpy(), center)
    assert call.attrs.data_layout == layout


def test_images_of_unknown_size_keep_their_taps():
    mod, _ = relax_conv("NHWC", tirx.Var("height", "int64"), dilation=9)
    assert unread_taps.drop(mod) is mod


def test_a_kernel_that_is_an_input_stays():
    """Its taps are not known before the network runs, but they may be read all the same."""
    mod = OnnxNetwork(dilated(36, constant=False), name="one").to_relax()
    assert unread_taps.drop(mod) is mod
