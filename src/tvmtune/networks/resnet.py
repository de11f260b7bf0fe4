"""ResNets for image classification (He et al., 2015), version 1, with torchvision's layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tvmtune.networks.graph_builder import GraphBuilder, Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

_BLOCKS = {18: (2, 2, 2, 2)}
"""Residual blocks per stage; the width doubles from stage to stage, starting with 64 channels."""


def build(shape: Sequence[int], *, depth: int, classes: int = 1000) -> onnx.ModelProto:
    """ResNet of the given depth for images of ``shape`` (N, C, H, W); output ``logits``."""
    g = GraphBuilder(f"resnet-{depth}")
    x = g.relu(g.conv_bn(g.input("data", shape), "stem", 64, 7, stride=2, pad=3))
    x = g.max_pool(x, "pool", 3, stride=2, pad=1)
    for stage, blocks in enumerate(_BLOCKS[depth]):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            x = _basic_block(g, x, f"stage{stage + 1}.block{block + 1}", 64 << stage, stride)
    x = g.global_average_pool(x, "average")
    return g.model(g.dense(x, "classifier", classes, output="logits"))


def _basic_block(g: GraphBuilder, x: Value, name: str, channels: int, stride: int) -> Value:
    """Two 3x3 convolutions beside a shortcut, which is projected where the shape changes."""
    y = g.relu(g.conv_bn(x, f"{name}.conv1", channels, 3, stride=stride, pad=1))
    if stride != 1 or x.shape[1] != channels:
        x = g.conv_bn(x, f"{name}.shortcut", channels, 1, stride=stride, variance=0.5)
    # The branch brings what the shortcut lacks of a standard normal sum, so that no block, however
    # many there are, amplifies; but at least a quarter, or it would not matter.
    rest = np.maximum(1.0 - x.moments.variance, 0.25)
    mean = -x.moments.mean
    y = g.conv_bn(y, f"{name}.conv2", channels, 3, pad=1, mean=mean, variance=rest)
    return g.relu(g.add(y, x, f"{name}.add"))
