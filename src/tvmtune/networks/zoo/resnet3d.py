"""ResNets for videos (Tran et al., 2017, "R3D"), as torchvision's ``r3d_18``.

The stem is one 3x7x7 convolution, of stride 1 over frames and 2 over pixels, without a pooling after
it. Then come the basic blocks of the ResNet of the same depth, with 3x3x3 convolutions and, between
stages, a stride of 2 over frames and pixels alike; then the average over everything and the
classifier for the 400 classes of Kinetics. Depth 34, which torchvision lacks, differs only in the
number of blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmtune.networks.zoo import resnet
from tvmtune.networks.zoo.graph_builder import GraphBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tvmtune.networks.zoo.onnx_writer import Detached


def build(shape: Sequence[int], *, depth: int, classes: int = 400) -> Detached:
    """ResNet for videos of ``shape`` (N, C, frames, H, W), of depth 18 or 34; output ``logits``."""
    g = GraphBuilder(f"resnet3d-{depth}")
    x = g.input("data", shape)
    x = g.conv_bn(x, "stem", 64, (3, 7, 7), stride=(1, 2, 2), pad=(1, 3, 3), mean=1.0, variance=0.5)
    x = g.relu(x)
    x = resnet.stages(g, x, depth)
    x = g.global_average_pool(x, "average")
    return g.finish(g.dense(x, "classifier", classes, output="logits"))
