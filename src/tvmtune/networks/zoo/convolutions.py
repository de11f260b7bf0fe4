"""Blocks of layers that several convolutional networks of the zoo share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmtune.networks.zoo.graph_builder import GraphBuilder, Value

if TYPE_CHECKING:
    from tvmtune.networks.zoo.activations import Activation


def conv_bn_activation(
    g: GraphBuilder,
    x: Value,
    name: str,
    channels: int,
    kernel: int,
    activation: Activation,
    *,
    stride: int = 1,
    groups: int = 1,
    mean: float,
    variance: float,
    epsilon: float = 1e-5,
) -> Value:
    """Convolution that pads by half its kernel, batch norm with these moments, and activation."""
    y = g.conv_bn(
        x,
        name,
        channels,
        kernel,
        stride=stride,
        pad=kernel // 2,
        groups=groups,
        mean=mean,
        variance=variance,
        epsilon=epsilon,
    )
    return activation(g, y)
