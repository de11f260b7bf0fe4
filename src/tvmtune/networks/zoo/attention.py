"""Multi-head self-attention, in the three forms that the zoo's transformers are exported in."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tvmtune.networks.zoo.graph_builder import Value
from tvmtune.networks.zoo.moments import Moments
from tvmtune.networks.zoo.tokens import linear, reshape, transpose

if TYPE_CHECKING:
    from collections.abc import Callable

    from tvmtune.networks.zoo.graph_builder import GraphBuilder

    Projection = Callable[[GraphBuilder, Value, str, int], tuple[list[str], Moments]]
    """From tokens to queries (N, H, T, D), keys (N, H, D, T), values (N, H, T, D) and their moments;
    arguments are the graph, the tokens, the layer's name and the number of heads H."""

_SHARPNESS = 5.0
"""Variance of the scores: each token attends to a few others. Means over all tokens would be equal."""
_KEPT = 0.2
"""The share of the values' variance that is left in the sums over tokens; measured with 64 to 197."""


def attention(
    g: GraphBuilder,
    x: Value,
    name: str,
    heads: int,
    project: Projection,
    *,
    variance: float,
    mask: str = "",
    scales_operands: bool = False,
    joint: bool = False,
) -> Value:
    """Self-attention and its output layer, whose results have this ``variance``.

    ``mask`` is added to the scores. They are scaled before the product if ``scales_operands``, else
    after. ``joint`` is that of :func:`tvmtune.networks.zoo.tokens.linear`.
    """
    samples, tokens, width = x.shape
    (query, key, value), moments = project(g, x, name, heads)
    factor = 1.0 / math.sqrt(width // heads)
    if scales_operands:
        root = g.scalar("attention.root", math.sqrt(factor))
        query = g.node("Mul", f"{name}.query.scaled", [query, root])
        key = g.node("Mul", f"{name}.key.scaled", [key, root])
    scores = g.node("MatMul", f"{name}.scores", [query, key])
    if not scales_operands:
        scale = g.scalar("attention.scale", factor)
        scores = g.node("Mul", f"{name}.scaled", [scores, scale])
    if mask:
        scores = g.node("Add", f"{name}.masked", [scores, mask])
    weights = g.node("Softmax", f"{name}.softmax", [scores], axis=-1)
    mixed = g.node("MatMul", f"{name}.mixed", [weights, value])
    mixed = transpose(g, mixed, f"{name}.mixed.tokens", (0, 2, 1, 3))
    mixed = reshape(g, mixed, f"{name}.mixed.joined", (samples, tokens, width))
    moments = Moments(moments.mean, _KEPT * moments.variance)
    return linear(
        g,
        Value(mixed, x.shape, moments),
        f"{name}.output",
        width,
        variance=variance,
        joint=joint,
    )


def separate(g: GraphBuilder, x: Value, name: str, heads: int) -> tuple[list[str], Moments]:
    """A layer each for queries, keys and values."""
    parts = [
        linear(g, x, f"{name}.{part}", x.shape[2], variance=variance)
        for part, variance in zip(("query", "key", "value"), (_SHARPNESS, 1.0, 1.0), strict=True)
    ]
    return _split_heads(g, [part.name for part in parts], x, heads), parts[2].moments


def split(g: GraphBuilder, x: Value, name: str, heads: int) -> tuple[list[str], Moments]:
    """One layer for all three, whose channels are then split."""
    width = x.shape[2]
    joined = linear(g, x, f"{name}.qkv", 3 * width, variance=_variances(width), joint=True)
    parts = [f"{name}.{part}" for part in ("query", "key", "value")]
    sizes = g.integers(f"{name}.split.sizes", np.array([width] * 3))
    g.split(joined.name, sizes, parts, axis=2)
    return _split_heads(g, parts, x, heads), _last(joined.moments, width)


def stacked(g: GraphBuilder, x: Value, name: str, heads: int) -> tuple[list[str], Moments]:
    """One layer for all three, which then become the first axis and are taken from it."""
    samples, tokens, width = x.shape
    joined = linear(g, x, f"{name}.qkv", 3 * width, variance=_variances(width))
    depth = width // heads
    y = reshape(g, joined.name, f"{name}.qkv.heads", (samples, tokens, 3, heads, depth))
    y = transpose(g, y, f"{name}.qkv.stacked", (2, 0, 3, 1, 4))
    parts = []
    for index, part in enumerate(("query", "key", "value")):
        place = g.integers(f"{name}.{part}.place", np.array(index))
        parts.append(g.node("Gather", f"{name}.{part}", [y, place], axis=0))
    parts[1] = transpose(g, parts[1], f"{name}.key.heads", (0, 1, 3, 2))
    return parts, _last(joined.moments, width)


def _variances(width: int) -> np.ndarray:
    return np.repeat([_SHARPNESS, 1.0, 1.0], width)


def _last(moments: Moments, width: int) -> Moments:
    return Moments(moments.mean[-width:], moments.variance[-width:])


def _split_heads(g: GraphBuilder, parts: list[str], x: Value, heads: int) -> list[str]:
    samples, tokens, width = x.shape
    result = []
    for part, axes in zip(parts, ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)), strict=True):
        y = reshape(g, part, f"{part}.split", (samples, tokens, heads, width // heads))
        result.append(transpose(g, y, f"{part}.heads", axes))
    return result
