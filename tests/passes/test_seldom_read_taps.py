"""Convolutions whose taps read mostly padding are split by taps, and the results stay the same."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest
from tvm import tirx

from kernels import agrees_with_reference, one_conv, prepared, relax_conv, this_machine
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.passes import pipeline, seldom_read_taps
from tvmtune.passes.bindings import bindings, operator_of
from tvmtune.passes.convolution_axes import Axis
from tvmtune.types import Prepared


def atrous(rate: int, size: int = 14, channels: int = 256, **options) -> onnx.ModelProto:
    """A convolution of the pyramid of DeepLab, with fewer output channels."""
    shape = (1, channels, size, size)
    return one_conv(shape, 64, dilation=rate, pads=(rate,) * 4, **options)


def convolutions(network: Prepared) -> list[list[int]]:
    """The shapes of the kernels of its convolutions."""
    calls = [b.value for b in bindings(network.graph) if "conv" in operator_of(b.value)]
    return [[int(extent) for extent in call.args[1].ty.shape] for call in calls]


def test_each_tap_is_a_convolution_of_the_pixels_that_it_reads():
    found = convolutions(prepared(atrous(12)))
    assert found == [[1, 1, 256, 64]] * 9
    assert convolutions(prepared(atrous(12), layout="NCHW")) == [[64, 256, 1, 1]] * 9


@pytest.mark.parametrize(
    "model",
    [
        atrous(1),
        atrous(2, size=65),
        atrous(12, size=65),
        atrous(12, channels=16),
        atrous(12, groups=4),
        atrous(12, constant=False),
    ],
    ids=["plain", "large images", "a quarter unread", "few channels", "groups", "computed weights"],
)
def test_what_stays_whole(model):
    assert len(convolutions(prepared(model))) == 1


def test_images_of_unknown_size_stay_whole():
    mod, _ = relax_conv("NHWC", tirx.Var("height", "int64"), dilation=6, dtype="float32")
    assert seldom_read_taps.split(mod) is mod


def test_hardware_that_computes_whole_convolutions_gets_them():
    network = OnnxNetwork(atrous(12), name="one")
    whole = pipeline.prepare(network, this_machine(), "NCHW", keep_convolutions=True)
    assert len(convolutions(whole)) == 1


def test_accelerators_keep_one_kernel():
    device = dataclasses.replace(this_machine(), runtime="cuda")
    network = OnnxNetwork(atrous(12), name="one")
    assert len(convolutions(pipeline.prepare(network, device))) == 1


@pytest.mark.sweep
@pytest.mark.parametrize(
    "model",
    [
        atrous(12, tail=("norm", "relu")),
        atrous(9, stride=2, size=18, channels=1024),
        one_conv((2, 1024, 30, 8), 64, dilation=20, pads=(20,) * 4),
        one_conv((2, 300, 20, 12), 96, kernel=5, dilation=6, stride=2, pads=(12, 11, 9, 20)),
        one_conv((1, 2048, 40), 256, kernel=9, dilation=10, pads=(40, 40)),
        one_conv((1, 64, 10, 10, 10), 64, dilation=8, pads=(8,) * 6),
    ],
    ids=[
        *("batch norm", "strided", "two images", "uneven padding"),
        *("one dimension", "three dimensions"),
    ],
)
def test_the_results_are_those_of_the_whole_kernel(tmp_path, model):
    assert len(convolutions(prepared(model))) > 1
    agrees_with_reference(model, tmp_path)


def test_a_tap_reads_the_image_for_the_outputs_that_the_axis_tells():
    rng = np.random.RandomState(0)
    for _ in range(500):
        extent, taps, stride, dilation = rng.randint(1, 9, 4)
        before, after = rng.randint(-3, 12, 2)
        outputs = (extent + before + after - (taps - 1) * dilation - 1) // stride + 1
        if outputs < 1:
            continue
        axis = Axis("H", extent, outputs, taps, stride, dilation, before, after)
        padded = np.pad(np.ones(extent, bool), (max(before, 0), max(after, 0)))
        padded = padded[max(-before, 0) :]
        for tap in range(taps):
            first = tap * dilation
            reads = padded[first : first + (outputs - 1) * stride + 1 : stride]
            assert [*axis.reading(tap)] == [*np.flatnonzero(reads)]
