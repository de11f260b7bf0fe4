"""SqueezeNets (Iandola et al., 2016): fire modules, and no fully connected layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmtune.networks.zoo.graph_builder import GraphBuilder, Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tvmtune.networks.zoo.onnx_writer import Detached

_STEMS = {"1.0": (96, 7), "1.1": (64, 3)}
"""Channels and kernel of the first convolution."""
_FIRES = {
    "1.0": ((16, 16, 32), (32, 48, 48, 64), (64,)),
    "1.1": ((16, 16), (32, 32), (48, 48, 64, 64)),
}
"""Squeeze channels of the fire modules, in groups that follow a pooling each."""


def build(shape: Sequence[int], *, version: str, classes: int = 1000) -> Detached:
    """SqueezeNet "1.0" or "1.1" for images of ``shape`` (N, C, H, W); output ``logits``.

    The logits are averages of rectified values, hence never negative.
    """
    g = GraphBuilder(f"squeezenet_v{version}")
    channels, kernel = _STEMS[version]
    x = g.relu(g.conv(g.input("data", shape), "stem", channels, kernel, stride=2))
    index = 2  # the paper counts from the stem
    for stage, fires in enumerate(_FIRES[version], 1):
        x = g.max_pool(x, f"pool{stage}", 3, stride=2, ceil=True)
        for width in fires:
            x = _fire(g, x, f"fire{index}", width)
            index += 1
    # Averages of positive values are nearly equal unless the values are few and large.
    x = g.relu(g.conv(x, "classifier", classes, 1, mean=-16.0, variance=256.0))
    return g.finish(g.global_average_pool(x, "average", output="logits"))


def _fire(g: GraphBuilder, x: Value, name: str, width: int) -> Value:
    """Squeeze to ``width`` channels, then expand four times by 1x1 and four times by 3x3."""
    x = g.relu(g.conv(x, f"{name}.squeeze", width, 1))
    near = g.relu(g.conv(x, f"{name}.expand1", 4 * width, 1))
    wide = g.relu(g.conv(x, f"{name}.expand3", 4 * width, 3, pad=1))
    return g.concat([near, wide], f"{name}.concat")
