"""MobileNet version 3 (Howard et al., 2019), with torchvision's layers, width 1.0."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tvmtune.networks.zoo.activations import hard_sigmoid, hard_swish, relu
from tvmtune.networks.zoo.convolutions import conv_bn_activation
from tvmtune.networks.zoo.graph_builder import GraphBuilder, Value
from tvmtune.networks.zoo.squeeze_excite import squeeze_excite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tvmtune.networks.zoo.activations import Activation
    from tvmtune.networks.zoo.onnx_writer import Detached


class _Block(NamedTuple):
    kernel: int
    width: int
    """Channels between the 1x1 convolutions."""
    channels: int
    squeezes: bool
    activation: Activation
    stride: int = 1


_BLOCKS = {
    "large": (
        _Block(3, 16, 16, False, relu),
        _Block(3, 64, 24, False, relu, 2),
        _Block(3, 72, 24, False, relu),
        _Block(5, 72, 40, True, relu, 2),
        *(_Block(5, 120, 40, True, relu),) * 2,
        _Block(3, 240, 80, False, hard_swish, 2),
        _Block(3, 200, 80, False, hard_swish),
        *(_Block(3, 184, 80, False, hard_swish),) * 2,
        _Block(3, 480, 112, True, hard_swish),
        _Block(3, 672, 112, True, hard_swish),
        _Block(5, 672, 160, True, hard_swish, 2),
        *(_Block(5, 960, 160, True, hard_swish),) * 2,
    ),
    "small": (
        _Block(3, 16, 16, True, relu, 2),
        _Block(3, 72, 24, False, relu, 2),
        _Block(3, 88, 24, False, relu),
        _Block(5, 96, 40, True, hard_swish, 2),
        *(_Block(5, 240, 40, True, hard_swish),) * 2,
        _Block(5, 120, 48, True, hard_swish),
        _Block(5, 144, 48, True, hard_swish),
        _Block(5, 288, 96, True, hard_swish, 2),
        *(_Block(5, 576, 96, True, hard_swish),) * 2,
    ),
}
_DENSE = {"large": 1280, "small": 1024}
"""Units before the classifier."""
_EPSILON = 1e-3
"""Of the batch norms."""
_conv = partial(conv_bn_activation, mean=1.0, variance=4.0, epsilon=_EPSILON)


def build(shape: Sequence[int], *, size: str, classes: int = 1000) -> Detached:
    """MobileNet version 3 for images of ``shape`` (N, C, H, W); output ``logits``."""
    g = GraphBuilder(f"mobilenet-v3-{size}")
    x = _conv(g, g.input("data", shape), "stem", 16, 3, hard_swish, stride=2)
    for index, block in enumerate(_BLOCKS[size], 1):
        x = _inverted(g, x, f"block{index}", block)
    x = _conv(g, x, "last", 6 * x.shape[1], 1, hard_swish)
    x = g.global_average_pool(x, "average")
    x = hard_swish(g, g.dense(x, "dense", _DENSE[size]))
    return g.finish(g.dense(x, "classifier", classes, output="logits"))


def _inverted(g: GraphBuilder, x: Value, name: str, block: _Block) -> Value:
    """Expand, convolve depthwise, perhaps squeeze and excite, and project without an activation."""
    width, act = block.width, block.activation
    y = _conv(g, x, f"{name}.expand", width, 1, act) if width != x.shape[1] else x
    y = _conv(
        g, y, f"{name}.depthwise", width, block.kernel, act, stride=block.stride, groups=width
    )
    if block.squeezes:
        narrow = _multiple_of_8(width // 4)
        y = squeeze_excite(g, y, f"{name}.se", narrow, relu, hard_sigmoid)
    residual = block.stride == 1 and block.channels == x.shape[1]
    share = 0.5 if residual else 1.0  # sums grow from 1 by the shares of up to two further blocks
    y = g.conv_bn(y, f"{name}.project", block.channels, 1, variance=share, epsilon=_EPSILON)
    return g.add(x, y, f"{name}.add") if residual else y


def _multiple_of_8(channels: int) -> int:
    """The nearest multiple of 8, but never less than nine tenths."""
    rounded = max(8, (channels + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * channels else rounded + 8
