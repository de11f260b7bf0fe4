"""ResNets for image classification (He et al., 2015), version 1, with torchvision's layers.

In a bottleneck the stride is that of the 3x3 convolution, not of the first 1x1 as in the paper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tvmtune.networks.zoo.graph_builder import GraphBuilder, Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tvmtune.networks.zoo.onnx_writer import Detached

BLOCKS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
"""Residual blocks per stage; the width doubles from stage to stage, starting with 64 channels."""


def build(shape: Sequence[int], *, depth: int, classes: int = 1000) -> Detached:
    """ResNet of the given depth for images of ``shape`` (N, C, H, W); output ``logits``."""
    normal = depth == 18
    g = GraphBuilder(f"resnet-{depth}", centered=not normal)
    x = g.relu(g.conv_bn(g.input("data", shape), "stem", 64, 7, stride=2, pad=3))
    x = g.max_pool(x, "pool", 3, stride=2, pad=1)
    x = stages(g, x, depth, normal=normal)
    x = g.global_average_pool(x, "average")
    return g.finish(g.dense(x, "classifier", classes, output="logits"))


def stages(g: GraphBuilder, x: Value, depth: int, *, normal: bool = False) -> Value:
    """All residual blocks, over any number of extents; ``normal`` as in :func:`_shortcut`."""
    block = _basic if depth < 50 else _bottleneck
    for stage, blocks in enumerate(BLOCKS[depth]):
        share = None if normal else 0.25 / blocks
        for index in range(blocks):
            stride = 2 if stage and not index else 1
            x = block(g, x, f"stage{stage + 1}.block{index + 1}", 64 << stage, stride, share)
    return x


def _basic(
    g: GraphBuilder, x: Value, name: str, width: int, stride: int, share: float | None
) -> Value:
    """Two 3x3 convolutions beside a shortcut, with a projection where the shape changes."""
    y = g.relu(g.conv_bn(x, f"{name}.conv1", width, 3, stride=stride, pad=1))
    x, mean, variance = _shortcut(g, x, name, width, stride, share)
    y = g.conv_bn(y, f"{name}.conv2", width, 3, pad=1, mean=mean, variance=variance)
    return g.relu(g.add(y, x, f"{name}.add"))


def _bottleneck(
    g: GraphBuilder, x: Value, name: str, width: int, stride: int, share: float | None
) -> Value:
    """A 3x3 convolution between two 1x1 ones that narrow and widen, beside the same shortcut."""
    y = g.relu(g.conv_bn(x, f"{name}.conv1", width, 1))
    y = g.relu(g.conv_bn(y, f"{name}.conv2", width, 3, stride=stride, pad=1))
    x, mean, variance = _shortcut(g, x, name, 4 * width, stride, share)
    y = g.conv_bn(y, f"{name}.conv3", 4 * width, 1, mean=mean, variance=variance)
    return g.relu(g.add(y, x, f"{name}.add"))


def _shortcut(
    g: GraphBuilder, x: Value, name: str, channels: int, stride: int, share: float | None
) -> tuple[Value, np.ndarray | float, np.ndarray | float]:
    """The shortcut, and the target mean and variance of the branch beside it.

    A projected shortcut is mostly positive, so that ReLUs pass what the branches add to it: each adds
    its ``share`` of the variance. With None, the branch completes the shortcut to a standard normal
    sum, with a variance of at least a quarter so that it matters. A sum with a rectified value is not
    exactly normal, which dozens of such blocks would amplify; ResNet-18 has few.
    """
    mean, variance = (0.0, 0.5) if share is None else (1.0, 0.25)
    if stride != 1 or x.shape[1] != channels:
        x = g.conv_bn(
            x, f"{name}.shortcut", channels, 1, stride=stride, mean=mean, variance=variance
        )
    if share is not None:
        return x, 0.0, share
    return x, -x.moments.mean, np.maximum(1.0 - x.moments.variance, 0.25)
