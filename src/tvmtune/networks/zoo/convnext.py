"""ConvNeXt-T (Liu et al., 2022), with torchvision's layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tvmtune.networks.zoo.activations import gelu
from tvmtune.networks.zoo.graph_builder import GraphBuilder, Value
from tvmtune.networks.zoo.moments import Moments
from tvmtune.networks.zoo.tokens import layer_norm, linear, transpose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tvmtune.networks.zoo.onnx_writer import Detached

_STAGES = ((96, 3), (192, 3), (384, 9), (768, 3))
"""Channels and blocks."""
_EPSILON = 1e-6
_SHARE = 0.2
"""What each block adds to the variance."""
_LAST, _FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
"""Transpositions that put the channels there."""


def build(shape: Sequence[int], *, classes: int = 1000) -> Detached:
    """ConvNeXt-T for images of ``shape`` (N, C, H, W); output ``logits``."""
    g = GraphBuilder("convnext-tiny")
    x = g.conv(g.input("data", shape), "stem", _STAGES[0][0], 4, stride=4)
    x = _norm(g, x, "stem.norm")
    for stage, (channels, blocks) in enumerate(_STAGES, 1):
        if stage > 1:
            x = _norm(g, x, f"stage{stage}.norm")
            x = g.conv(x, f"stage{stage}.halved", channels, 2, stride=2)
        for block in range(1, blocks + 1):
            x = _block(g, x, f"stage{stage}.block{block}")
    pooled = g.global_average_pool(x, "average")
    return g.finish(
        g.dense(
            layer_norm(g, pooled, "norm", epsilon=_EPSILON), "classifier", classes, output="logits"
        )
    )


def _block(g: GraphBuilder, x: Value, name: str) -> Value:
    """A depthwise 7x7 convolution, then two layers per position, scaled and added to the input."""
    width = x.shape[1]
    y = g.conv(x, f"{name}.depthwise", width, 7, pad=3, groups=width)
    y = layer_norm(g, _transposed(g, y, f"{name}.last", _LAST), f"{name}.norm", epsilon=_EPSILON)
    y = gelu(g, linear(g, y, f"{name}.mlp1", 4 * width))
    y = linear(g, y, f"{name}.mlp2", width)
    y = _transposed(g, y, f"{name}.first", _FIRST)
    scale = np.sqrt(_SHARE) * (1.0 + 0.2 * g.random(f"{name}.scale", (width,)))
    factor = g.weight(f"{name}.scale.weight", scale.reshape(-1, 1, 1))
    scaled = g.node("Mul", f"{name}.scale", [y.name, factor])
    moments = Moments.of(scale * y.moments.mean, np.square(scale) * y.moments.variance)
    return g.add(Value(scaled, y.shape, moments), x, f"{name}.add")


def _norm(g: GraphBuilder, x: Value, name: str) -> Value:
    """Normalization over the channels of (N, C, H, W)."""
    y = layer_norm(g, _transposed(g, x, f"{name}.last", _LAST), name, epsilon=_EPSILON)
    return _transposed(g, y, f"{name}.first", _FIRST)


def _transposed(g: GraphBuilder, x: Value, name: str, axes: tuple[int, ...]) -> Value:
    shape = tuple(x.shape[axis] for axis in axes)
    return Value(transpose(g, x.name, name, axes), shape, x.moments)
