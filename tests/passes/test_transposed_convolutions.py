"""Transposed convolutions become convolutions of the small image, and the results stay the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from kernels import prepared
from tvmtune import api
from tvmtune.accuracy import relative_error
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.passes.bindings import bindings, operator_of
from tvmtune.runtime.library import Library


def transposed(shape, kernel, constant: bool = True, **attributes) -> onnx.ModelProto:
    """A transposed convolution, a bias and a ReLU."""
    rng = np.random.RandomState(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal(extents).astype("float32"), name)
        for name, extents in (("w", kernel), ("b", [kernel[1] * attributes.get("group", 1)]))
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    if not constant:
        inputs.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, kernel))
        del weights[0]
    graph = helper.make_graph(
        [
            helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], **attributes),
            helper.make_node("Relu", ["y"], ["z"]),
        ],
        "one",
        inputs,
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def operators(model: onnx.ModelProto) -> list[str]:
    return [operator_of(binding.value) for binding in bindings(prepared(model).graph)]


REWRITTEN = {
    "U-Net's": transposed((1, 16, 5, 7), (16, 8, 2, 2), strides=[2, 2]),
    "DCGAN's, two images": transposed(
        (2, 16, 5, 7), (16, 8, 4, 4), strides=[2, 2], pads=[1, 1, 1, 1]
    ),
    "its first": transposed((1, 16, 1, 1), (16, 8, 4, 4)),
    "an odd kernel, more outputs on one side": transposed(
        (1, 16, 5, 7), (16, 8, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1]
    ),
    "one channel per group": transposed(
        (1, 8, 6, 6), (8, 1, 4, 4), strides=[2, 2], group=8, pads=[1, 1, 1, 1]
    ),
    "groups, all unequal": transposed(
        (1, 16, 5, 7), (16, 2, 5, 3), strides=[3, 2], group=4, pads=[1, 0, 0, 1]
    ),
    "a kernel smaller than the stride": transposed((1, 4, 5, 5), (4, 6, 2, 2), strides=[3, 3]),
    "outputs that no input reaches": transposed(
        (1, 4, 5, 5), (4, 6, 2, 2), strides=[2, 2], output_padding=[1, 1]
    ),
    "a voice's": transposed((1, 8, 9), (8, 4, 16), strides=[8], pads=[4, 4]),
    "a volume's": transposed(
        (1, 4, 3, 4, 5), (4, 6, 3, 3, 3), strides=[2, 2, 2], pads=[1, 1, 1, 1, 1, 1]
    ),
}
LEFT = {
    "dilation": transposed((1, 4, 5, 5), (4, 6, 3, 3), strides=[2, 2], dilations=[2, 2]),
    "padding that drops pixels": transposed(
        (1, 4, 9, 9), (4, 6, 3, 3), strides=[2, 2], pads=[5, 5, 5, 5]
    ),
    "weights are data": transposed((1, 4, 5, 5), (4, 6, 2, 2), constant=False, strides=[2, 2]),
}


@pytest.mark.parametrize("model", REWRITTEN.values(), ids=REWRITTEN)
def test_they_become_convolutions(model):
    names = [name for name in operators(model) if "conv" in name]
    assert len(names) == 1 and "transpose" not in names[0]


@pytest.mark.parametrize("model", LEFT.values(), ids=LEFT)
def test_others_remain(model):
    assert any(name.startswith("nn.conv") and "transpose" in name for name in operators(model))


@pytest.mark.sweep
@pytest.mark.parametrize("model", [*REWRITTEN.values(), *LEFT.values()], ids=[*REWRITTEN, *LEFT])
def test_the_results_are_those_of_the_network(model, tmp_path: Path):
    network = OnnxNetwork(model, name="one")
    plan = api.plan(network, attrs={"threads": 1})
    inputs = random_inputs(network.inputs, 3)
    library = Library.open(api.compile(plan, tmp_path / "lib.so").path)
    for got, want in zip(library.run(inputs), network.reference(inputs), strict=True):
        assert got.shape == want.shape
        assert relative_error(got, want) < 1e-6
