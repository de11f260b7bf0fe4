"""VGG networks (Simonyan and Zisserman, 2014), without batch norm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmtune.errors import UsageError
from tvmtune.networks.zoo.graph_builder import GraphBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tvmtune.networks.zoo.onnx_writer import Detached

_CONVOLUTIONS = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}
"""3x3 convolutions per stage."""
_CHANNELS = (64, 128, 256, 512, 512)
_GRID = 7
"""Positions per axis that the first fully connected layer takes."""


def build(shape: Sequence[int], *, depth: int, classes: int = 1000) -> Detached:
    """VGG of the given depth for images of ``shape`` (N, C, H, W); output ``logits``.

    The fully connected layers take 7x7 positions. Larger images are averaged down to these like in
    torchvision's adaptive pooling, which requires a multiple of 7 positions after the convolutions.
    """
    _check_extents(shape[2:], f"vgg-{depth}")
    g = GraphBuilder(f"vgg-{depth}")
    x = g.input("data", shape)
    for stage, (layers, channels) in enumerate(zip(_CONVOLUTIONS[depth], _CHANNELS, strict=True)):
        for layer in range(layers):
            x = g.relu(g.conv(x, f"stage{stage + 1}.conv{layer + 1}", channels, 3, pad=1))
        x = g.max_pool(x, f"stage{stage + 1}.pool", 2, stride=2)
    height, width = (extent // _GRID for extent in x.shape[2:])
    if (height, width) != (1, 1):
        x = g.average_pool(x, "average", (height, width), stride=(height, width))
    x = g.flatten(x, "flatten")
    for layer in (1, 2):
        x = g.relu(g.dense(x, f"dense{layer}", 4096))
    return g.finish(g.dense(x, "classifier", classes, output="logits"))


def _check_extents(extents: Sequence[int], name: str) -> None:
    halved = [extent >> len(_CHANNELS) for extent in extents]
    if any(left < _GRID or left % _GRID for left in halved):
        raise UsageError(
            f"{name} cannot take images of {'x'.join(map(str, extents))}: its fully connected "
            f"layers see {_GRID}x{_GRID} positions; height and width may be multiples of "
            f"{_GRID << len(_CHANNELS)}"
        )
