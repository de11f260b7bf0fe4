"""Fourier transforms of ONNX, compared with those of onnx's evaluator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from kernels import agrees_with_reference
from tvmtune.errors import TvmtuneError
from tvmtune.networks.onnx.network import OnnxNetwork


def transform(
    operator: str,
    shape: Sequence[int],
    constants: Mapping[str, np.ndarray | None],
    opset: int = 20,
    **attributes: int,
) -> onnx.ModelProto:
    """One node, whose further inputs are ``constants``; None is left out."""
    data = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    given = {name: value for name, value in constants.items() if value is not None}
    names = [name if name in given else "" for name in constants]
    while names and not names[-1]:
        names.pop()
    node = helper.make_node(operator, ["x", *names], ["y"], **attributes)
    graph = helper.make_graph(
        [node],
        "transform",
        [data],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in given.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def number(value: int) -> np.ndarray:
    return np.array(value, "int64")


def dft(
    shape: Sequence[int], length: int | None = None, axis: int | None = None, **attributes: int
) -> onnx.ModelProto:
    inputs = {
        "length": None if length is None else number(length),
        "axis": None if axis is None else number(axis),
    }
    return transform("DFT", shape, inputs, **attributes)


def stft(
    shape: Sequence[int],
    step: int,
    window: np.ndarray | None,
    length: int | None = None,
    **attributes: int,
) -> onnx.ModelProto:
    inputs = {
        "step": number(step),
        "window": window,
        "length": None if length is None else number(length),
    }
    return transform("STFT", shape, inputs, **attributes)


HANN = np.hanning(16).astype("float32")
TRANSFORMS = {
    "real": dft((2, 12, 1)),
    "complex": dft((2, 12, 2)),
    "inverse": dft((2, 12, 2), inverse=1),
    "inverse of real values": dft((2, 12, 1), inverse=1),
    "onesided": dft((2, 12, 1), onesided=1),
    "onesided, an odd number of points": dft((2, 11, 1), onesided=1),
    "shorter": dft((2, 12, 1), length=7),
    "longer": dft((2, 12, 2), length=17),
    "along the first axis": dft((6, 3, 2), axis=0),
    "along an axis counted from the end": dft((2, 5, 6, 1), axis=-3),
    "opset 17": transform("DFT", (2, 6, 3, 1), {}, opset=17, axis=2),
    "opset 17, its default axis": transform("DFT", (2, 6, 1), {}, opset=17),
    "frames": stft((2, 60, 1), 5, HANN),
    "frames with a length": stft((1, 50, 1), 16, HANN, 16, onesided=1),
    "frames without a window": stft((1, 50, 1), 7, None, 12, onesided=1),
    "frames, both sides": stft((1, 50, 1), 7, HANN, onesided=0),
}


@pytest.mark.sweep
@pytest.mark.parametrize("model", TRANSFORMS.values(), ids=TRANSFORMS)
def test_transforms_are_those_of_the_standard(model, tmp_path: Path):
    agrees_with_reference(model, tmp_path)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (dft((1, 8, 2), onesided=1), "onesided=1 is supported for a forward transform of real"),
        (dft((1, 8, 1), onesided=1, inverse=1), "onesided=1 is supported for a forward"),
        (dft((1, 100_000, 1)), "a transform of 100000 points is too large"),
        (stft((1, 50, 1), 5, HANN, 12), "its window has 16 values, and its frames have 12"),
        (stft((1, 50, 1), 5, None), "it has neither a window nor a frame_length"),
    ],
)
def test_others_are_refused_with_the_reason(model, reason):
    with pytest.raises(TvmtuneError, match=reason):
        OnnxNetwork(model, name="transform").to_relax()


@pytest.mark.parametrize("operator", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_windows_are_periodic_unless_they_say_otherwise(operator, tmp_path: Path):
    nodes = [
        helper.make_node(operator, ["size"], ["window"]),
        helper.make_node("Mul", ["x", "window"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (3, 10)) for name in "xy")
    size = numpy_helper.from_array(np.array(10, "int64"), "size")
    graph = helper.make_graph(nodes, "window", [x], [y], [size])
    opset = helper.make_opsetid("", 20)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=9)
    agrees_with_reference(model, tmp_path)
