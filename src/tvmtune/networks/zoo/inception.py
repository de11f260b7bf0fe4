"""Inception version 3 (Szegedy et al., 2015), with torchvision's layers, no auxiliary classifier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmtune.networks.zoo.graph_builder import GraphBuilder, Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tvmtune.networks.zoo.onnx_writer import Detached
    from tvmtune.networks.zoo.windows import Extent


def build(shape: Sequence[int], *, classes: int = 1000) -> Detached:
    """Inception version 3 for images of ``shape`` (N, C, H, W); output ``logits``."""
    g = GraphBuilder("inception_v3")
    x = _conv(g, g.input("data", shape), "stem1", 32, 3, stride=2)
    x = _conv(g, x, "stem2", 32, 3)
    x = _conv(g, x, "stem3", 64, 3, pad=1)
    x = g.max_pool(x, "pool1", 3, stride=2)
    x = _conv(g, x, "stem4", 80, 1)
    x = _conv(g, x, "stem5", 192, 3)
    x = g.max_pool(x, "pool2", 3, stride=2)
    for index, pooled in enumerate((32, 64, 64), 1):
        x = _mixed_5(g, x, f"mixed5.{index}", pooled)
    x = _reduced_5(g, x, "mixed5.reduced")
    for index, width in enumerate((128, 160, 160, 192), 1):
        x = _mixed_6(g, x, f"mixed6.{index}", width)
    x = _reduced_6(g, x, "mixed6.reduced")
    for index in (1, 2):
        x = _mixed_7(g, x, f"mixed7.{index}")
    x = g.global_average_pool(x, "average")
    return g.finish(g.dense(x, "classifier", classes, output="logits"))


def _mixed_5(g: GraphBuilder, x: Value, name: str, pooled: int) -> Value:
    """1x1, 5x5, twice 3x3 and pooling: the 35x35 grid of a 299x299 image."""
    one = _conv(g, x, f"{name}.one", 64, 1)
    five = _conv(g, x, f"{name}.five1", 48, 1)
    five = _conv(g, five, f"{name}.five2", 64, 5, pad=2)
    three = _twice_3x3(g, x, name)
    return g.concat([one, five, three, _pooled(g, x, name, pooled)], name)


def _reduced_5(g: GraphBuilder, x: Value, name: str) -> Value:
    """From 35x35 to 17x17."""
    once = _conv(g, x, f"{name}.once", 384, 3, stride=2)
    twice = _twice_3x3(g, x, name, stride=2)
    return g.concat([once, twice, g.max_pool(x, f"{name}.pool", 3, stride=2)], name)


def _mixed_6(g: GraphBuilder, x: Value, name: str, width: int) -> Value:
    """1x1, 7x7 in two steps, the same twice, and pooling: the 17x17 grid."""
    one = _conv(g, x, f"{name}.one", 192, 1)
    once = _conv(g, x, f"{name}.once1", width, 1)
    once = _row(g, once, f"{name}.once2", width, 7)
    once = _column(g, once, f"{name}.once3", 192, 7)
    twice = _conv(g, x, f"{name}.twice1", width, 1)
    twice = _column(g, twice, f"{name}.twice2", width, 7)
    twice = _row(g, twice, f"{name}.twice3", width, 7)
    twice = _column(g, twice, f"{name}.twice4", width, 7)
    twice = _row(g, twice, f"{name}.twice5", 192, 7)
    return g.concat([one, once, twice, _pooled(g, x, name, 192)], name)


def _reduced_6(g: GraphBuilder, x: Value, name: str) -> Value:
    """From 17x17 to 8x8."""
    three = _conv(g, x, f"{name}.three1", 192, 1)
    three = _conv(g, three, f"{name}.three2", 320, 3, stride=2)
    seven = _conv(g, x, f"{name}.seven1", 192, 1)
    seven = _row(g, seven, f"{name}.seven2", 192, 7)
    seven = _column(g, seven, f"{name}.seven3", 192, 7)
    seven = _conv(g, seven, f"{name}.seven4", 192, 3, stride=2)
    return g.concat([three, seven, g.max_pool(x, f"{name}.pool", 3, stride=2)], name)


def _mixed_7(g: GraphBuilder, x: Value, name: str) -> Value:
    """1x1, 3x3 as a row beside a column, the same after a 3x3, and pooling: the 8x8 grid."""
    one = _conv(g, x, f"{name}.one", 320, 1)
    once = _conv(g, x, f"{name}.once1", 384, 1)
    once = _row_and_column(g, once, f"{name}.once2")
    twice = _conv(g, x, f"{name}.twice1", 448, 1)
    twice = _conv(g, twice, f"{name}.twice2", 384, 3, pad=1)
    twice = _row_and_column(g, twice, f"{name}.twice3")
    return g.concat([one, once, twice, _pooled(g, x, name, 192)], name)


def _twice_3x3(g: GraphBuilder, x: Value, name: str, *, stride: int = 1) -> Value:
    """Two 3x3 convolutions after a 1x1; a stride applies to the last, which then has no padding."""
    x = _conv(g, x, f"{name}.three1", 64, 1)
    x = _conv(g, x, f"{name}.three2", 96, 3, pad=1)
    return _conv(g, x, f"{name}.three3", 96, 3, stride=stride, pad=1 if stride == 1 else 0)


def _row_and_column(g: GraphBuilder, x: Value, name: str) -> Value:
    parts = [_row(g, x, f"{name}.row", 384, 3), _column(g, x, f"{name}.column", 384, 3)]
    return g.concat(parts, name)


def _pooled(g: GraphBuilder, x: Value, name: str, channels: int) -> Value:
    """A 3x3 average pooling and a 1x1 convolution."""
    x = g.average_pool(x, f"{name}.pool", 3, pad=1)
    return _conv(g, x, f"{name}.pooled", channels, 1)


def _row(g: GraphBuilder, x: Value, name: str, channels: int, kernel: int) -> Value:
    return _conv(g, x, name, channels, (1, kernel), pad=(0, kernel // 2))


def _column(g: GraphBuilder, x: Value, name: str, channels: int, kernel: int) -> Value:
    return _conv(g, x, name, channels, (kernel, 1), pad=(kernel // 2, 0))


def _conv(
    g: GraphBuilder,
    x: Value,
    name: str,
    channels: int,
    kernel: Extent,
    *,
    stride: int = 1,
    pad: Extent = 0,
) -> Value:
    """Convolution, batch norm with this network's own epsilon, and ReLU."""
    y = g.conv_bn(x, name, channels, kernel, stride=stride, pad=pad, epsilon=1e-3)
    return g.relu(y)
