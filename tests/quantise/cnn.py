"""Small CNNs with everything between layers that a packed region has to cope with."""

from __future__ import annotations

from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.networks.zoo.graph_builder import GraphBuilder, Value


def residual(channels: int = 16, side: int = 16) -> OnnxNetwork:
    """A stem and two residual blocks; the second makes the picture smaller; batch norms throughout."""
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
    """Channels that are no multiples of 16, and much that stays on the CPU between layers: pooling, a
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


def _finished(g: GraphBuilder, x: Value) -> OnnxNetwork:
    pooled = g.global_average_pool(x, "average")
    return OnnxNetwork(g.model(g.dense(pooled, "classifier", 10, output="logits")), name="cnn")
