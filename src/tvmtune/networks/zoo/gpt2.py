"""GPT-2 of 124 M parameters (Radford et al., 2019), with the layers of transformers' GPT2LMHeadModel.

It computes the logits of all positions at once and keeps no keys and values: what a prompt takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tvmtune.errors import UsageError
from tvmtune.networks.zoo.activations import gelu_tanh
from tvmtune.networks.zoo.attention import attention, split
from tvmtune.networks.zoo.graph_builder import GraphBuilder, Value
from tvmtune.networks.zoo.tokens import embedding, layer_norm, linear, transpose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tvmtune.networks.zoo.onnx_writer import Detached

_VOCABULARY = 50257
_POSITIONS = 1024
_WIDTH = 768
_HEADS = 12
_LAYERS = 12
_EPSILON = 1e-5
_EMBEDDED = 1.0 / 16.0
"""Variance of the embeddings, which are also the classifier: with larger ones, only a token's own
embedding would decide its logits."""
_SHARE = 0.1
"""What each branch adds to the variance."""


def build(shape: Sequence[int]) -> Detached:
    """GPT-2 for ids of tokens, of ``shape`` (N, T); output ``logits`` (N, T, vocabulary)."""
    if shape[1] > _POSITIONS:
        raise UsageError(
            f"gpt2 cannot take {shape[1]} tokens: it has embeddings of {_POSITIONS} positions"
        )
    g = GraphBuilder("gpt2")
    ids = g.input_integers("input_ids", shape)
    hidden = (*shape, _WIDTH)
    words = embedding(g, ids, "words", _VOCABULARY, hidden, variance=_EMBEDDED)
    places = g.integers("places", np.arange(shape[1])[None])
    positions = embedding(g, places, "positions", _POSITIONS, (1, *hidden[1:]), variance=_EMBEDDED)
    x = g.add(words, positions, "embedded")
    mask = g.weight("mask", _causal_mask(shape[1]))
    for layer in range(1, _LAYERS + 1):
        x = _block(g, x, f"layer{layer}", mask)
    x = layer_norm(g, x, "norm", epsilon=_EPSILON)
    g.node("MatMul", "logits", [x.name, transpose(g, "words.weight", "words.transposed", (1, 0))])
    return g.finish(Value("logits", (*shape, _VOCABULARY), words.moments))


def _causal_mask(tokens: int) -> np.ndarray:
    """What is added to the scores: minus infinity where a token would see a later one."""
    return np.triu(np.full((1, 1, tokens, tokens), -np.inf), 1)


def _block(g: GraphBuilder, x: Value, name: str, mask: str) -> Value:
    """Attention and two fully connected layers, each of normalized tokens and added to them."""
    y = layer_norm(g, x, f"{name}.norm1", epsilon=_EPSILON)
    y = attention(g, y, f"{name}.attention", _HEADS, split, variance=_SHARE, mask=mask, joint=True)
    x = g.add(y, x, f"{name}.add1")
    y = layer_norm(g, x, f"{name}.norm2", epsilon=_EPSILON)
    y = gelu_tanh(g, linear(g, y, f"{name}.mlp1", 4 * _WIDTH, joint=True))
    y = linear(g, y, f"{name}.mlp2", _WIDTH, variance=_SHARE, joint=True)
    return g.add(x, y, f"{name}.add2")
