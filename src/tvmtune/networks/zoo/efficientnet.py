"""EfficientNet-B0 (Tan and Le, 2019), with torchvision's layers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tvmtune.networks.zoo.activations import sigmoid, silu
from tvmtune.networks.zoo.convolutions import conv_bn_activation
from tvmtune.networks.zoo.graph_builder import GraphBuilder, Value
from tvmtune.networks.zoo.squeeze_excite import squeeze_excite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tvmtune.networks.zoo.onnx_writer import Detached

_STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
"""Expansion, kernel, stride of the first block, output channels, blocks."""

_conv = partial(conv_bn_activation, activation=silu, mean=0.5, variance=1.0)
"""With SiLU; a mean above 0 keeps it from amplifying deviations."""


def build(shape: Sequence[int], *, classes: int = 1000) -> Detached:
    """EfficientNet-B0 for images of ``shape`` (N, C, H, W); output ``logits``."""
    g = GraphBuilder("efficientnet-b0")
    x = _conv(g, g.input("data", shape), "stem", 32, 3, stride=2)
    for stage, (expansion, kernel, first, channels, blocks) in enumerate(_STAGES, 1):
        for block in range(blocks):
            name, stride = f"stage{stage}.block{block + 1}", 1 if block else first
            y = _inverted(g, x, name, expansion, kernel, stride, channels, variance=1.0 / blocks)
            x = g.add(x, y, f"{name}.add") if block else y
    x = g.global_average_pool(_conv(g, x, "last", 1280, 1), "average")
    return g.finish(g.dense(x, "classifier", classes, output="logits"))


def _inverted(
    g: GraphBuilder,
    x: Value,
    name: str,
    expansion: int,
    kernel: int,
    stride: int,
    channels: int,
    *,
    variance: float,
) -> Value:
    """Expand, convolve depthwise, squeeze and excite, and project without an activation.

    ``variance`` is the block's share of the stage's.
    """
    width = expansion * x.shape[1]
    y = _conv(g, x, f"{name}.expand", width, 1) if expansion != 1 else x
    y = _conv(g, y, f"{name}.depthwise", width, kernel, stride=stride, groups=width)
    y = squeeze_excite(g, y, f"{name}.se", x.shape[1] // 4, silu, sigmoid)
    return g.conv_bn(y, f"{name}.project", channels, 1, variance=variance)
