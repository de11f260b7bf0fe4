"""MobileNet version 2 (Sandler et al., 2018): inverted residuals, width 1.0."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tvmtune.networks.zoo.convolutions import conv_bn_activation
from tvmtune.networks.zoo.graph_builder import GraphBuilder, Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tvmtune.networks.zoo.onnx_writer import Detached

_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, output channels, blocks, and stride of the first block."""

_conv = partial(conv_bn_activation, activation=GraphBuilder.relu6, mean=1.0, variance=4.0)
"""With ReLU6; scaled so that a few values in a thousand reach 6."""


def build(shape: Sequence[int], *, classes: int = 1000) -> Detached:
    """MobileNet version 2 for images of ``shape`` (N, C, H, W); output ``logits``."""
    g = GraphBuilder("mobilenet-v2")
    x = _conv(g, g.input("data", shape), "stem", 32, 3, stride=2)
    for stage, (expansion, channels, blocks, first) in enumerate(_STAGES, 1):
        for block in range(blocks):
            name, stride = f"stage{stage}.block{block + 1}", first if block == 0 else 1
            y = _inverted(g, x, name, expansion, channels, stride, variance=1.0 / blocks)
            x = g.add(x, y, f"{name}.add") if block else y
    x = g.global_average_pool(_conv(g, x, "last", 1280, 1), "average")
    return g.finish(g.dense(x, "classifier", classes, output="logits"))


def _inverted(
    g: GraphBuilder,
    x: Value,
    name: str,
    expansion: int,
    channels: int,
    stride: int,
    *,
    variance: float,
) -> Value:
    """Expand, convolve depthwise, and project without an activation.

    ``variance`` is the block's share of the stage's.
    """
    width = expansion * x.shape[1]
    y = _conv(g, x, f"{name}.expand", width, 1) if expansion != 1 else x
    y = _conv(g, y, f"{name}.depthwise", width, 3, stride=stride, groups=width)
    return g.conv_bn(y, f"{name}.project", channels, 1, variance=variance)
