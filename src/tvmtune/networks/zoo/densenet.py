"""DenseNet-121 (Huang et al., 2016), with torchvision's layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmtune.networks.zoo.graph_builder import GraphBuilder, Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tvmtune.networks.zoo.onnx_writer import Detached

_LAYERS = {121: (6, 12, 24, 16)}
"""Dense layers per block."""
_GROWTH = 32
"""Channels that each dense layer adds."""


def build(shape: Sequence[int], *, depth: int, classes: int = 1000) -> Detached:
    """DenseNet of the given depth for images of ``shape`` (N, C, H, W); output ``logits``."""
    g = GraphBuilder(f"densenet-{depth}")
    x = g.relu(g.conv_bn(g.input("data", shape), "stem", 64, 7, stride=2, pad=3))
    x = g.max_pool(x, "pool", 3, stride=2, pad=1)
    for block, layers in enumerate(_LAYERS[depth], 1):
        if block > 1:
            x = _transition(g, x, f"transition{block - 1}")
        for layer in range(1, layers + 1):
            x = _dense_layer(g, x, f"block{block}.layer{layer}")
    x = g.relu(g.batch_norm(x, "norm"))
    x = g.global_average_pool(x, "average")
    return g.finish(g.dense(x, "classifier", classes, output="logits"))


def _dense_layer(g: GraphBuilder, x: Value, name: str) -> Value:
    """``x`` concatenated with the result of a 1x1 and a 3x3 convolution of it."""
    y = g.relu(g.batch_norm(x, f"{name}.norm"))
    y = g.relu(g.conv_bn(y, f"{name}.conv1", 4 * _GROWTH, 1))
    y = g.conv_plain(y, f"{name}.conv2", _GROWTH, 3, pad=1)
    return g.concat([x, y], name)


def _transition(g: GraphBuilder, x: Value, name: str) -> Value:
    """Half the channels and half the extents."""
    x = g.relu(g.batch_norm(x, f"{name}.norm"))
    x = g.conv_plain(x, f"{name}.conv", x.shape[1] // 2, 1)
    return g.average_pool(x, f"{name}.pool", 2, stride=2)
