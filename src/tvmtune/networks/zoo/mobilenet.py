"""MobileNet version 1 (Howard et al., 2017): depthwise separable convolutions, width 1.0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmtune.networks.zoo.graph_builder import GraphBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tvmtune.networks.zoo.onnx_writer import Detached

_LAYERS = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *((512, 1),) * 5,
    (1024, 2),
    (1024, 1),
)
"""Output channels and stride of each separable convolution."""


def build(shape: Sequence[int], *, classes: int = 1000) -> Detached:
    """MobileNet for images of ``shape`` (N, C, H, W); output ``logits``."""
    g = GraphBuilder("mobilenet", centered=False)
    x = g.relu(g.conv_bn(g.input("data", shape), "stem", 32, 3, stride=2, pad=1))
    for index, (channels, stride) in enumerate(_LAYERS, 1):
        name = f"layer{index}"
        width = x.shape[1]
        x = g.conv_bn(x, f"{name}.depthwise", width, 3, stride=stride, pad=1, groups=width)
        x = g.relu(x)
        x = g.relu(g.conv_bn(x, f"{name}.pointwise", channels, 1))
    x = g.global_average_pool(x, "average")
    return g.finish(g.dense(x, "classifier", classes, output="logits"))
