"""BERT base (Devlin et al., 2018), uncased vocabulary, with the layers of transformers' BertModel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto

from tvmtune.errors import UsageError
from tvmtune.networks.zoo.activations import gelu
from tvmtune.networks.zoo.attention import attention, separate
from tvmtune.networks.zoo.graph_builder import GraphBuilder, Value
from tvmtune.networks.zoo.moments import Moments
from tvmtune.networks.zoo.tokens import embedding, layer_norm, linear

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tvmtune.networks.zoo.onnx_writer import Detached

_VOCABULARY = 30522
_POSITIONS = 512
_WIDTH = 768
_HEADS = 12
_LAYERS = 12
_EPSILON = 1e-12
_ATTENTION, _MLP = 0.1, 1.0
"""Variance of what each branch adds to normalized tokens. Attention mixes much the same tokens into all
of them: with a larger share they would become alike from layer to layer."""


def build(shape: Sequence[int]) -> Detached:
    """BERT base for ``shape`` (N, T), that of the ids of tokens, of their mask and of their segments.

    Outputs ``last_hidden_state`` and ``pooler_output``.
    """
    if shape[1] > _POSITIONS:
        raise UsageError(
            f"bert-base cannot take {shape[1]} tokens: it has embeddings of {_POSITIONS} positions"
        )
    g = GraphBuilder("bert-base")
    ids = g.input_integers("input_ids", shape)
    mask = g.input_integers("attention_mask", shape)
    kinds = g.input_integers("token_type_ids", shape)
    hidden = (*shape, _WIDTH)
    words = embedding(g, ids, "words", _VOCABULARY, hidden, variance=0.5)
    types = embedding(g, kinds, "types", 2, hidden, variance=0.1)
    places = g.integers("places", np.arange(shape[1])[None])
    positions = embedding(g, places, "positions", _POSITIONS, (1, *hidden[1:]), variance=0.5)
    x = g.add(g.add(words, types, "words.types"), positions, "words.positions")
    x = layer_norm(g, x, "norm", epsilon=_EPSILON)
    added = _added_mask(g, mask)
    for layer in range(1, _LAYERS + 1):
        last = "last_hidden_state" if layer == _LAYERS else ""
        x = _block(g, x, f"layer{layer}", added, output=last)
    return g.finish(x, _pooled(g, x))


def _added_mask(g: GraphBuilder, mask: str) -> str:
    """What is added to the scores: 0 where ``mask`` is 1, and the lowest float32 where it is 0."""
    axes = g.integers("mask.axes", np.array([1, 2]))
    wide = g.node("Unsqueeze", "mask.wide", [mask, axes])
    kept = g.node("Cast", "mask.float", [wide], to=TensorProto.FLOAT)
    dropped = g.node("Sub", "mask.dropped", [g.scalar("mask.one", 1.0), kept])
    lowest = g.scalar("mask.lowest", float(np.finfo(np.float32).min))
    return g.node("Mul", "mask", [dropped, lowest])


def _block(g: GraphBuilder, x: Value, name: str, mask: str, *, output: str) -> Value:
    """Attention and two fully connected layers, each added to the tokens, which are then normalized."""
    y = attention(g, x, f"{name}.attention", _HEADS, separate, variance=_ATTENTION, mask=mask)
    x = layer_norm(g, g.add(y, x, f"{name}.add1"), f"{name}.norm1", epsilon=_EPSILON)
    y = gelu(g, linear(g, x, f"{name}.mlp1", 4 * _WIDTH))
    y = linear(g, y, f"{name}.mlp2", _WIDTH, variance=_MLP)
    x = g.add(y, x, f"{name}.add2")
    return layer_norm(g, x, f"{name}.norm2", epsilon=_EPSILON, output=output)


def _pooled(g: GraphBuilder, x: Value) -> Value:
    """The first token through a fully connected layer and tanh."""
    first = g.node("Gather", "first", [x.name, g.integers("first.place", np.array(0))], axis=1)
    y = g.dense(Value(first, (x.shape[0], _WIDTH), x.moments), "pooler", _WIDTH)
    name = g.node("Tanh", "pooler.tanh", [y.name], output="pooler_output")
    return Value(name, y.shape, Moments.standard(_WIDTH))
