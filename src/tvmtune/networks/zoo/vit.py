"""Vision transformer ViT-B/16 (Dosovitskiy et al., 2020), with torchvision's layers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tvmtune.errors import UsageError
from tvmtune.networks.zoo.activations import gelu
from tvmtune.networks.zoo.attention import attention, stacked
from tvmtune.networks.zoo.graph_builder import GraphBuilder, Value
from tvmtune.networks.zoo.tokens import add_parameter, layer_norm, linear, reshape, transpose
from tvmtune.types import product

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tvmtune.networks.zoo.onnx_writer import Detached

_PATCH = 16
_WIDTH = 768
_HEADS = 12
_LAYERS = 12
_EPSILON = 1e-6
_SHARE = 1.0 / 6.0
"""What each branch adds to a variance that starts with 1."""


def build(shape: Sequence[int], *, classes: int = 1000) -> Detached:
    """ViT-B/16 for images of ``shape`` (N, C, H, W); output ``logits``.

    Height and width are multiples of 16; there is a position embedding for each patch.
    """
    if any(extent % _PATCH for extent in shape[2:]):
        raise UsageError(
            f"vit-b-16 cannot take images of {'x'.join(map(str, shape[2:]))}: height and width must "
            f"be multiples of {_PATCH}"
        )
    g = GraphBuilder("vit-b-16")
    x = _patches(g, g.input("data", shape))
    for layer in range(1, _LAYERS + 1):
        x = _block(g, x, f"layer{layer}")
    x = layer_norm(g, x, "norm", epsilon=_EPSILON)
    first = g.node("Gather", "class", [x.name, g.integers("class.place", np.array(0))], axis=1)
    x = Value(first, (x.shape[0], _WIDTH), x.moments)
    return g.finish(g.dense(x, "classifier", classes, output="logits"))


def _patches(g: GraphBuilder, x: Value) -> Value:
    """The class token and then one token per patch, with their position embeddings."""
    x = g.conv(x, "patches", _WIDTH, _PATCH, stride=_PATCH, variance=0.5)
    samples, count = x.shape[0], product(x.shape[2:])
    rows = reshape(g, x.name, "patches.rows", (samples, _WIDTH, count))
    rows = transpose(g, rows, "patches.tokens", (0, 2, 1))
    token = "class_token.weight"
    g.drawn_weight(token, (1, 1, _WIDTH), math.sqrt(1.5))
    if samples > 1:
        extents = g.integers("class_token.extents", np.array([samples, 1, _WIDTH]))
        token = g.node("Expand", "class_token", [token, extents])
    g.node("Concat", "tokens", [token, rows], axis=1)
    x = Value("tokens", (samples, count + 1, _WIDTH), x.moments)
    return add_parameter(g, x, "positions", (1, count + 1, _WIDTH), variance=0.5)


def _block(g: GraphBuilder, x: Value, name: str) -> Value:
    """Attention and two fully connected layers, each of normalized tokens and added to them."""
    y = layer_norm(g, x, f"{name}.norm1", epsilon=_EPSILON)
    y = attention(g, y, f"{name}.attention", _HEADS, stacked, variance=_SHARE, scales_operands=True)
    x = g.add(x, y, f"{name}.add1")
    y = layer_norm(g, x, f"{name}.norm2", epsilon=_EPSILON)
    y = gelu(g, linear(g, y, f"{name}.mlp1", 4 * _WIDTH))
    y = linear(g, y, f"{name}.mlp2", _WIDTH, variance=_SHARE)
    return g.add(x, y, f"{name}.add2")
