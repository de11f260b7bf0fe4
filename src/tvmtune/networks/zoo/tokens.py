"""Layers on values of shape (N, T, C): T tokens of C channels each, whose moments are per channel."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tvmtune.networks.zoo.graph_builder import Value
from tvmtune.networks.zoo.moments import Moments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tvmtune.networks.zoo.graph_builder import GraphBuilder

_ROWS = 1 << 6
"""Rows of a matrix that are converted to float64 at a time: they stay in the cache."""


def embedding(
    g: GraphBuilder, ids: str, name: str, rows: int, shape: Sequence[int], *, variance: float
) -> Value:
    """The rows of a table that int64 ``ids`` name; ``shape`` (N, T, C) is that of the result."""
    g.drawn_weight(f"{name}.weight", (rows, shape[2]), math.sqrt(3.0 * variance))
    g.node("Gather", name, [f"{name}.weight", ids], axis=0)
    return Value(name, tuple(shape), _constant(shape[2], 0.0, variance))


def add_parameter(
    g: GraphBuilder, x: Value, name: str, shape: Sequence[int], *, variance: float
) -> Value:
    """Sum with a learned array of ``shape``, which broadcasts to that of ``x``."""
    g.drawn_weight(f"{name}.weight", shape, math.sqrt(3.0 * variance))
    g.node("Add", name, [x.name, f"{name}.weight"])
    return Value(name, x.shape, Moments(x.moments.mean, x.moments.variance + variance))


def layer_norm(g: GraphBuilder, x: Value, name: str, *, epsilon: float, output: str = "") -> Value:
    """Normalization over the channels of each token, with a scale and a bias near those of training."""
    spread = g.random(name, (2, x.shape[-1]))
    scale, bias = 1.0 + 0.2 * spread[0], 0.2 * spread[1]
    names = [g.weight(f"{name}.weight", scale), g.weight(f"{name}.bias", bias)]
    g.node("LayerNormalization", name, [x.name, *names], output=output, axis=-1, epsilon=epsilon)
    middle = x.moments.mean.mean()
    power = np.mean(x.moments.variance + np.square(x.moments.mean - middle))
    moments = Moments.of(
        bias + scale * (x.moments.mean - middle) / np.sqrt(power),
        np.square(scale) * x.moments.variance / power,
    )
    return Value(output or name, x.shape, moments)


def linear(
    g: GraphBuilder,
    x: Value,
    name: str,
    units: int,
    *,
    variance: float | np.ndarray = 1.0,
    joint: bool = False,
) -> Value:
    """Fully connected layer whose results have these variances, one or one per unit, and mean 0.

    A product and a sum; ``joint`` makes it one Gemm of all tokens' channels.
    """
    width = x.shape[-1]
    deviations = np.sqrt(np.broadcast_to(variance, (units,)))
    scale = math.sqrt(3.0 / x.moments.variance.sum())  # uniform in [-1, 1]: variance 1/3
    weight = g.drawn_weight(f"{name}.weight", (width, units), scale * deviations.max())
    if np.ptp(deviations):
        weight *= (deviations / deviations.max()).astype(np.float32)
    spread = 0.1 * deviations * g.random(f"{name}.bias", (units,))
    shift = np.zeros(units)
    for start in range(0, width, _ROWS):
        rows = slice(start, start + _ROWS)
        shift += x.moments.mean[rows] @ weight[rows].astype(np.float64)
    # Rounded for the reason that moments are: see there.
    g.weight(f"{name}.bias", np.round(spread - shift, 6))
    inputs = [f"{name}.weight", f"{name}.bias"]
    shape = (*x.shape[:-1], units)
    if joint:
        rows_of = reshape(g, x.name, f"{name}.rows", (-1, width))
        g.node("Gemm", f"{name}.gemm", [rows_of, *inputs])
        reshape(g, f"{name}.gemm", name, shape)
    else:
        g.node("MatMul", f"{name}.product", [x.name, inputs[0]])
        g.node("Add", name, [f"{name}.product", inputs[1]])
    return Value(name, shape, Moments.of(spread, np.square(deviations)))


def reshape(g: GraphBuilder, x: str, name: str, shape: Sequence[int]) -> str:
    """The tensor ``x`` in another shape."""
    return g.node("Reshape", name, [x, g.integers(f"{name}.shape", np.array(shape))])


def transpose(g: GraphBuilder, x: str, name: str, axes: Sequence[int]) -> str:
    """The tensor ``x`` with its axes in this order."""
    return g.node("Transpose", name, [x], perm=list(axes))


def _constant(channels: int, mean: float, variance: float) -> Moments:
    return Moments(np.full(channels, mean), np.full(channels, variance))
