"""Layers in whole numbers beside ONNX Runtime's: ConvInteger, and a shift that rounds down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from graph.kernels import this_machine
from quantise import cnn
from tvmtune import networks
from tvmtune.graph import pipeline
from tvmtune.networks.inputs import random_inputs
from tvmtune.quantise import integers, region
from tvmtune.quantise.network import QuantisedNetwork


def expressed(wholes: Sequence[integers.Whole]) -> onnx.ModelProto:
    """Layers, one after another, as an ONNX graph on int8 tensors by their names, all of which that a
    layer makes are outputs. ConvInteger's sums are int32; doubles hold them exactly while they are
    shifted."""
    nodes, constants, shapes = [], {}, {}
    for number, whole in enumerate(wholes):
        layer = whole.layer
        shapes |= dict(zip(layer.inputs, layer.in_shapes, strict=True))

        def own(name: str, number: int = number) -> str:
            return f"{name}_{number}"

        def constant(name: str, value: np.ndarray, own=own) -> str:
            constants[own(name)] = value
            return own(name)

        if layer.kind == "sum":
            for side, (given, factor) in enumerate(zip(layer.inputs, whole.factors, strict=True)):
                wide = own(f"wide{side}")
                nodes.append(helper.make_node("Cast", [given], [wide], to=TensorProto.INT32))
                by = constant(
                    f"factor{side}", np.array(0 if factor is None else 1 << factor, np.int32)
                )
                nodes.append(helper.make_node("Mul", [wide, by], [own(f"scaled{side}")]))
            nodes.append(helper.make_node("Add", [own("scaled0"), own("scaled1")], [own("both")]))
            half = 1 << whole.shift - 1 if whole.shift else 0
            offset = constant("half", np.array(half, np.int32))
            nodes.append(helper.make_node("Add", [own("both"), offset], [own("sums")]))
        else:
            assert whole.weights is not None and whole.bias is not None
            nodes.append(
                helper.make_node(
                    "ConvInteger",
                    [layer.inputs[0], constant("w", whole.weights)],
                    [own("products")],
                    strides=list(layer.strides),
                    pads=list(layer.padding),
                    dilations=list(layer.dilation),
                    group=layer.groups,
                )
            )
            bias = constant("bias", whole.bias.reshape(1, -1, 1, 1))
            nodes.append(helper.make_node("Add", [own("products"), bias], [own("sums")]))
        step = constant("step", np.array(2.0**-whole.shift))
        low, high = (
            constant(name, np.array(float(bound)))
            for name, bound in (("low", whole.low), ("high", whole.high))
        )
        nodes += [
            helper.make_node("Cast", [own("sums")], [own("exact")], to=TensorProto.DOUBLE),
            helper.make_node("Mul", [own("exact"), step], [own("scaled")]),
            helper.make_node("Floor", [own("scaled")], [own("shifted")]),
            helper.make_node("Clip", [own("shifted"), low, high], [own("cut")]),
            helper.make_node("Cast", [own("cut")], [layer.output], to=TensorProto.INT8),
        ]
    made = {whole.layer.output: whole.layer.out_shape for whole in wholes}
    graph = helper.make_graph(
        nodes,
        "layers",
        [
            helper.make_tensor_value_info(name, TensorProto.INT8, shape)
            for name, shape in shapes.items()
            if name not in made
        ],
        [helper.make_tensor_value_info(n, TensorProto.INT8, shape) for n, shape in made.items()],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def computed(
    wholes: Sequence[integers.Whole], given: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """By ONNX Runtime."""
    model = expressed(wholes)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(given)), strict=True))


@pytest.mark.parametrize("seed", range(12))
def test_onnx_runtime_computes_the_same_bits(seed):
    rng = np.random.default_rng(seed)
    groups = int(rng.choice([1, 1, 2, 4]))
    ins, outs = (groups * int(rng.integers(1, 9)) for _ in range(2))
    kernel, (top, left, bottom, right) = rng.integers(1, 5, 2), rng.integers(0, 3, 4)
    strides, side = rng.integers(1, 4, 2), rng.integers(8, 15, 2)
    shape = [
        int((size + pads - k) // step + 1)
        for size, pads, k, step in zip(
            side, (top + bottom, left + right), kernel, strides, strict=True
        )
    ]
    layer = region.Layer(
        *("convolution", ("x",), "y"),
        ((2, ins, *map(int, side)),),
        (2, outs, *shape),
        strides=tuple(map(int, strides)),
        padding=tuple(map(int, (top, left, bottom, right))),
        groups=groups,
    )
    whole = integers.Whole(
        *(layer, (0,), 7, int(rng.integers(0, 12)), int(rng.choice([-127, 0])), 127),
        weights=rng.integers(-127, 128, (outs, ins // groups, *kernel)).astype(np.int8),
        bias=rng.integers(-(1 << 18), 1 << 18, outs).astype(np.int32),
    )
    x = rng.integers(-128, 128, layer.in_shapes[0]).astype(np.int8)
    wanted = computed([whole], {"x": x})["y"]
    assert np.array_equal(integers.run(whole, [x]), wanted)
    assert wanted.std() > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["residual", "resnet-18"])
def test_a_whole_network_has_the_same_bits_in_onnx_runtime(name):
    """All layers, each on what the one before has made."""
    network = cnn.residual() if name == "residual" else networks.load(name)
    prepared = pipeline.prepare(network, this_machine(), "NCHW")
    layers = region.find(prepared.graph).layers
    samples = [random_inputs(network.inputs, 0)]
    wholes = QuantisedNetwork(prepared, layers, samples).wholes
    made = {whole.layer.output for whole in wholes}
    rng = np.random.default_rng(1)
    given = {
        n: rng.integers(-127, 128, shape).astype(np.int8)
        for whole in wholes
        for n, shape in zip(whole.layer.inputs, whole.layer.in_shapes, strict=True)
        if n not in made
    }
    found = integers.run_all(wholes, given)
    wanted = computed(wholes, given)
    assert wanted.keys() == made
    for layer, array in wanted.items():
        assert np.array_equal(found[layer], array), layer
    assert len(wanted) == (7 if name == "residual" else 27)
