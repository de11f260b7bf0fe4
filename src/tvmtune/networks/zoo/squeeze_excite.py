"""Squeeze-and-excitation (Hu et al., 2017): channels scaled by a function of all their averages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmtune.networks.zoo.graph_builder import Value, effective_samples
from tvmtune.networks.zoo.moments import Moments, multiplied
from tvmtune.types import product

if TYPE_CHECKING:
    from tvmtune.networks.zoo.activations import Activation
    from tvmtune.networks.zoo.graph_builder import GraphBuilder


def squeeze_excite(
    g: GraphBuilder,
    x: Value,
    name: str,
    width: int,
    activation: Activation,
    gate: Activation,
) -> Value:
    """``x`` times ``gate`` of two 1x1 convolutions of its averages; ``width`` channels between them."""
    pooled = g.node("GlobalAveragePool", f"{name}.average", [x.name])
    # Averages over many positions hardly vary. Weights that made up for that would amplify the error
    # of the moments' means instead, and saturate the gate.
    share = max(1.0 / effective_samples(product(x.shape[2:])), 0.12)
    variance = share * x.moments.variance
    y = Value(pooled, (*x.shape[:2], *[1] * (len(x.shape) - 2)), Moments(x.moments.mean, variance))
    y = activation(g, g.conv(y, f"{name}.squeeze", width, 1))
    y = gate(g, g.conv(y, f"{name}.excite", x.shape[1], 1))
    g.node("Mul", name, [x.name, y.name])
    return Value(name, x.shape, multiplied(x.moments, y.moments))
