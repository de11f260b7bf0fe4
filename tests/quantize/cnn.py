"""Small CNNs with everything that a quantized region may contain between its layers."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.networks.zoo.graph_builder import GraphBuilder, Value


def residual(channels: int = 16, side: int = 16) -> OnnxNetwork:
    """A stem and two residual blocks; the second downsamples; batch norms throughout."""
    g = GraphBuilder("residual")
    x = g.relu(g.conv_bn(g.input("data", (1, 3, side, side)), "stem", channels, 3, pad=1))
    x = g.max_pool(x, "pool", 2, stride=2)
    for number, (wide, stride) in enumerate(((channels, 1), (2 * channels, 2))):
        y = g.relu(g.conv_bn(x, f"first{number}", wide, 3, stride=stride, pad=1))
        y = g.conv_bn(y, f"second{number}", wide, 3, pad=1)
        shortcut = x if stride == 1 else g.conv_bn(x, "shortcut", wide, 1, stride=stride)
        x = g.relu(g.add(y, shortcut, f"sum{number}"))
    return _finished(g, x)


def mixed() -> OnnxNetwork:
    """Channels that are not multiples of 16, and layers with float operators between them: pooling, a
    concatenation, a depthwise convolution."""
    g = GraphBuilder("mixed")
    x = g.relu(g.conv_bn(g.input("data", (1, 3, 16, 16)), "stem", 20, 3, pad=1))
    x = g.max_pool(x, "pool", 2, stride=2)
    left = g.relu6(g.conv_bn(x, "left", 24, 1))
    right = g.relu(g.conv_bn(x, "right", 8, 3, pad=1))
    x = g.relu(g.conv_bn(g.concat([left, right], "both"), "joint", 40, 3, pad=1))
    x = g.max_pool(x, "smaller", 2, stride=2)
    x = g.relu(g.conv_bn(x, "depthwise", 40, 3, pad=1, groups=40))
    return _finished(g, g.relu(g.conv_bn(x, "last", 17, 1)))


def grouped() -> OnnxNetwork:
    """Groups of 32, 10, 4 and 1 channels, the last with two outputs each."""
    g = GraphBuilder("grouped")
    x = g.relu(g.conv_bn(g.input("data", (1, 3, 16, 16)), "stem", 64, 3, pad=1))
    x = g.relu(g.conv_bn(x, "halves", 64, 3, stride=2, pad=1, groups=2))
    x = g.relu(g.conv_bn(x, "narrow", 20, 1))
    x = g.relu(g.conv_bn(x, "partial", 20, 3, pad=1, groups=2))
    x = g.relu(g.conv_bn(x, "wide", 32, 1))
    x = g.relu(g.conv_bn(x, "fours", 32, 3, pad=1, groups=8))
    return _finished(g, g.relu(g.conv_bn(x, "doubled", 64, 3, pad=1, groups=32)))


def uneven() -> OnnxNetwork:
    """Five groups of 8 channels, which do not fill an instruction in pairs."""
    g = GraphBuilder("uneven")
    x = g.relu(g.conv_bn(g.input("data", (1, 3, 16, 16)), "stem", 40, 3, stride=2, pad=1))
    x = g.relu(g.conv_bn(x, "eights", 40, 3, pad=1, groups=5))
    return _finished(g, g.relu(g.conv_bn(x, "last", 24, 1)))


def forked(batch: int = 1) -> OnnxNetwork:
    """Two outputs, one of them a layer's; a tensor added to itself; a layer that reads the network's
    input; and a convolution to a single pixel, for which VTA has no tile."""
    g = GraphBuilder("forked")
    data = g.input("data", (batch, 16, 8, 8))
    x = g.relu(g.conv_bn(g.relu(data), "stem", 16, 3, pad=1))
    y = g.conv_bn(data, "beside", 16, 3, pad=1)
    x = g.add(g.relu(g.add(x, x, "twice")), y, "joined")
    pixel = g.conv_bn(g.conv_bn(x, "wide", 16, 3, pad=1), "pixel", 16, 8)
    return OnnxNetwork(g.model(x, pixel), name="forked")


def decoder() -> OnnxNetwork:
    """After the first convolution and a pooling: a stride of 2 with padding on only two sides, as in
    TensorFlow, and two transposed convolutions that upsample again, one of them grouped."""
    rng = np.random.default_rng(0)
    shapes = {
        "first": (16, 16, 1, 1),
        "second": (32, 16, 3, 3),
        "up": (32, 16, 4, 4),
        "grouped": (32, 16, 3, 3),
    }
    constants = {
        name: rng.standard_normal(shape) / np.sqrt(shape[0] * shape[2] * shape[3] / 2)
        for name, shape in shapes.items()
    }
    constants["bias"] = 0.1 * rng.standard_normal(32)

    nodes = [
        _node("Conv", "data first", "all"),
        _node("MaxPool", "all", "pooled", kernel_shape=[2, 2], strides=[2, 2]),
        _node("Conv", "pooled second bias", "small", strides=[2, 2], pads=[0, 0, 1, 1]),
        _node("Relu", "small", "cut"),
        _node("ConvTranspose", "cut up", "larger", strides=[2, 2], pads=[1, 1, 1, 1]),
        _node("Concat", "larger larger", "both", axis=1),
        _node(
            *("ConvTranspose", "both grouped bias", "largest"),
            strides=[2, 2],
            pads=[1, 1, 1, 1],
            output_padding=[1, 0],
            group=2,
        ),
        _node("Relu", "largest", "image"),
    ]
    return _network("decoder", nodes, constants, (1, 16, 16, 16), ("image", (1, 32, 16, 15)))


def audio() -> OnnxNetwork:
    """Convolutions of one dimension, as in speech recognition: strided, dilated, depthwise, and one
    with a bias."""
    rng = np.random.default_rng(0)
    shapes = {
        "stem": (24, 3, 5),
        "dilated": (24, 24, 3),
        "depthwise": (24, 1, 3),
        "last": (20, 24, 1),
    }
    constants = {
        name: rng.standard_normal(shape) / np.sqrt(shape[1] * shape[2] / 2)
        for name, shape in shapes.items()
    }
    constants["bias"] = 0.1 * rng.standard_normal(20)

    nodes = [
        _node("Conv", "data stem", "half", strides=[2], pads=[2, 2]),
        _node("Relu", "half", "rectified"),
        _node("Conv", "rectified dilated", "wide", dilations=[2], pads=[2, 2]),
        _node("Relu", "wide", "positive"),
        _node("Conv", "positive depthwise", "each", group=24, pads=[1, 1]),
        _node("Conv", "each last bias", "features"),
    ]
    return _network("audio", nodes, constants, (1, 3, 64), ("features", (1, 20, 32)))


def one_convolution(shape: tuple[int, ...]) -> OnnxNetwork:
    """Of the network's input."""
    g = GraphBuilder("one")
    return OnnxNetwork(g.model(g.conv_bn(g.input("data", shape), "only", 4, 1)), name="one")


def _node(op: str, inputs: str, output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], **attributes)


def _network(
    name: str,
    nodes: list[onnx.NodeProto],
    constants: dict[str, np.ndarray],
    shape: tuple[int, ...],
    output: tuple[str, tuple[int, ...]],
) -> OnnxNetwork:
    """From ``data`` of this shape to an output of this name and shape."""
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("data", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(output[0], TensorProto.FLOAT, output[1])],
        [numpy_helper.from_array(v.astype("float32"), key) for key, v in constants.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    return OnnxNetwork(helper.make_model(graph, opset_imports=opset, ir_version=8), name=name)


def _finished(g: GraphBuilder, x: Value) -> OnnxNetwork:
    pooled = g.global_average_pool(x, "average")
    return OnnxNetwork(g.model(g.dense(pooled, "classifier", 10, output="logits")), name="cnn")
