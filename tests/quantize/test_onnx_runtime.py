"""Quantized layers against ONNX Runtime: ConvInteger, and a shift that rounds down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from kernels import this_machine
from quantize import cnn
from tvmtune import networks
from tvmtune.networks.inputs import random_inputs
from tvmtune.passes import pipeline
from tvmtune.quantize import integers, region
from tvmtune.quantize.integers import QuantizedConvolution, QuantizedSum
from tvmtune.quantize.layers import ConvolutionLayer
from tvmtune.quantize.network import QuantizedNetwork


def expressed(quantized_layers: Sequence[integers.QuantizedLayer]) -> onnx.ModelProto:
    """Layers as an ONNX graph of int8 tensors with the same names; every layer's output is an output.

    ConvInteger's sums are int32; doubles hold them exactly during the shift.
    """
    nodes, constants, shapes = [], {}, {}
    for number, quantized in enumerate(quantized_layers):
        layer = quantized.layer
        shapes |= dict(zip(layer.inputs, layer.in_shapes, strict=True))

        def own(name: str, number: int = number) -> str:
            return f"{name}_{number}"

        def constant(name: str, value: np.ndarray, own=own) -> str:
            constants[own(name)] = value
            return own(name)

        if isinstance(quantized, QuantizedSum):
            for side, (given, factor) in enumerate(
                zip(layer.inputs, quantized.factors, strict=True)
            ):
                wide = own(f"wide{side}")
                nodes.append(helper.make_node("Cast", [given], [wide], to=TensorProto.INT32))
                by = constant(
                    f"factor{side}", np.array(0 if factor is None else 1 << factor, np.int32)
                )
                nodes.append(helper.make_node("Mul", [wide, by], [own(f"scaled{side}")]))
            nodes.append(helper.make_node("Add", [own("scaled0"), own("scaled1")], [own("both")]))
            offset = constant("half", np.array(quantized.rounding, np.int32))
            nodes.append(helper.make_node("Add", [own("both"), offset], [own("sums")]))
        else:
            assert isinstance(quantized, QuantizedConvolution)
            nodes.append(
                helper.make_node(
                    "ConvInteger",
                    [layer.inputs[0], constant("w", quantized.weights)],
                    [own("products")],
                    strides=list(layer.strides),
                    pads=list(layer.padding),
                    dilations=list(layer.dilation),
                    group=layer.groups,
                )
            )
            bias = constant("bias", quantized.bias.reshape(1, -1, 1, 1))
            nodes.append(helper.make_node("Add", [own("products"), bias], [own("sums")]))
        step = constant("step", np.array(2.0**-quantized.shift))
        low, high = (
            constant(name, np.array(float(bound)))
            for name, bound in (("low", quantized.low), ("high", quantized.high))
        )
        nodes += [
            helper.make_node("Cast", [own("sums")], [own("exact")], to=TensorProto.DOUBLE),
            helper.make_node("Mul", [own("exact"), step], [own("scaled")]),
            helper.make_node("Floor", [own("scaled")], [own("shifted")]),
            helper.make_node("Clip", [own("shifted"), low, high], [own("cut")]),
            helper.make_node("Cast", [own("cut")], [layer.output], to=TensorProto.INT8),
        ]
    computed_shapes = {
        quantized.layer.output: quantized.layer.out_shape for quantized in quantized_layers
    }
    graph = helper.make_graph(
        nodes,
        "layers",
        [
            helper.make_tensor_value_info(name, TensorProto.INT8, shape)
            for name, shape in shapes.items()
            if name not in computed_shapes
        ],
        [
            helper.make_tensor_value_info(n, TensorProto.INT8, shape)
            for n, shape in computed_shapes.items()
        ],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def computed(
    quantized_layers: Sequence[integers.QuantizedLayer], inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """By ONNX Runtime."""
    model = expressed(quantized_layers)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


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
    layer = ConvolutionLayer(
        *(("x",), "y"),
        ((2, ins, *map(int, side)),),
        (2, outs, *shape),
        strides=tuple(map(int, strides)),
        padding=tuple(map(int, (top, left, bottom, right))),
        groups=groups,
    )
    quantized = QuantizedConvolution(
        *(layer, (0,), 7, int(rng.integers(0, 12)), int(rng.choice([-127, 0])), 127),
        weights=rng.integers(-127, 128, (outs, ins // groups, *kernel)).astype(np.int8),
        weight_exponent=0,
        bias=rng.integers(-(1 << 18), 1 << 18, outs).astype(np.int32),
    )
    x = rng.integers(-128, 128, layer.in_shapes[0]).astype(np.int8)
    wanted = computed([quantized], {"x": x})["y"]
    assert np.array_equal(quantized.run([x]), wanted)
    assert wanted.std() > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["residual", "resnet-18"])
def test_a_complete_network_has_the_same_bits_in_onnx_runtime(name):
    """All layers, each on the output of the one before."""
    network = cnn.residual() if name == "residual" else networks.load(name)
    prepared = pipeline.prepare(network, this_machine(), "NCHW")
    layers = region.find_region(prepared.graph).layers
    samples = [random_inputs(network.inputs, 0)]
    quantized_layers = QuantizedNetwork(prepared, layers, samples).quantized_layers
    computed_names = {quantized.layer.output for quantized in quantized_layers}
    rng = np.random.default_rng(1)
    given = {
        n: rng.integers(-127, 128, shape).astype(np.int8)
        for quantized in quantized_layers
        for n, shape in zip(quantized.layer.inputs, quantized.layer.in_shapes, strict=True)
        if n not in computed_names
    }
    found = integers.run_all(quantized_layers, given)
    wanted = computed(quantized_layers, given)
    assert wanted.keys() == computed_names
    for layer, array in wanted.items():
        assert np.array_equal(found[layer], array), layer
    assert len(wanted) == (7 if name == "residual" else 27)
