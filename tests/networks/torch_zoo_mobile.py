"""The zoo's networks with squeeze-and-excitation as independently written PyTorch modules."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from networks.torch_zoo import Normed, flat_average


class Gate(nn.Module):
    """Scales channels by two 1x1 convolutions of their averages."""

    def __init__(self, width: int, narrow: int, act: nn.Module, gate: nn.Module):
        super().__init__()
        self.narrow, self.act = nn.Conv2d(width, narrow, 1), act
        self.wide, self.gate = nn.Conv2d(narrow, width, 1), gate

    def forward(self, x):
        average = x.mean(dim=(2, 3), keepdim=True)
        return x * self.gate(self.wide(self.act(self.narrow(average))))


class Bottleneck(nn.Module):
    def __init__(self, inner, wide, outer, kernel, stride, act, gate=None, eps=1e-5):
        super().__init__()
        options = {"stride": stride, "padding": kernel // 2, "groups": wide, "eps": eps}
        self.skip = stride == 1 and inner == outer
        self.layers = nn.Sequential(
            *([Normed(inner, wide, 1, act, eps=eps)] if wide != inner else []),
            Normed(wide, wide, kernel, act, **options),
            *([gate] if gate else []),
            Normed(wide, outer, 1, eps=eps),
        )

    def forward(self, x):
        return x + self.layers(x) if self.skip else self.layers(x)


LARGE = """
    3 16 16 - relu 1;   3 64 24 - relu 2;   3 72 24 - relu 1;   5 72 40 24 relu 2;  5 120 40 32 relu 1
    5 120 40 32 relu 1; 3 240 80 - hard 2;  3 200 80 - hard 1;  3 184 80 - hard 1;  3 184 80 - hard 1
    3 480 112 120 hard 1; 3 672 112 168 hard 1; 5 672 160 168 hard 2; 5 960 160 240 hard 1
    5 960 160 240 hard 1
"""
SMALL = """
    3 16 16 8 relu 2;   3 72 24 - relu 2;   3 88 24 - relu 1;   5 96 40 24 hard 2;  5 240 40 64 hard 1
    5 240 40 64 hard 1; 5 120 48 32 hard 1; 5 144 48 40 hard 1; 5 288 96 72 hard 2
    5 576 96 144 hard 1; 5 576 96 144 hard 1
"""
"""Of each block: kernel, width, channels, channels of the gate, activation, stride."""


class MobileNetV3(nn.Module):
    def __init__(self, table: str, units: int):
        super().__init__()
        eps, inner = 1e-3, 16
        layers = [Normed(3, 16, 3, nn.Hardswish(), stride=2, padding=1, eps=eps)]
        for row in table.replace("\n", ";").split(";"):
            if not row.strip():
                continue
            kernel, wide, outer, narrow, name, stride = row.split()
            act = nn.ReLU() if name == "relu" else nn.Hardswish()
            gate = None
            if narrow != "-":
                gate = Gate(int(wide), int(narrow), nn.ReLU(), nn.Hardsigmoid())
            layers.append(
                Bottleneck(
                    inner, int(wide), int(outer), int(kernel), int(stride), act, gate, eps=eps
                )
            )
            inner = int(outer)
        self.layers = nn.Sequential(*layers, Normed(inner, 6 * inner, 1, nn.Hardswish(), eps=eps))
        self.head = nn.Sequential(
            nn.Linear(6 * inner, units), nn.Hardswish(), nn.Linear(units, 1000)
        )

    def forward(self, x):
        return self.head(flat_average(self.layers(x)))


class EfficientNet(nn.Module):
    def __init__(self):
        super().__init__()
        layers, inner = [Normed(3, 32, 3, nn.SiLU(), stride=2, padding=1)], 32
        table = [(1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3)]
        for factor, kernel, first, outer, count in [
            *table,
            (6, 5, 1, 112, 3),
            (6, 5, 2, 192, 4),
            (6, 3, 1, 320, 1),
        ]:
            for index in range(count):
                wide, stride = inner * factor, 1 if index else first
                gate = Gate(wide, inner // 4, nn.SiLU(), nn.Sigmoid())
                layers.append(Bottleneck(inner, wide, outer, kernel, stride, nn.SiLU(), gate))
                inner = outer
        self.layers = nn.Sequential(*layers, Normed(inner, 1280, 1, nn.SiLU()))
        self.head = nn.Linear(1280, 1000)

    def forward(self, x):
        return self.head(torch.flatten(nn.functional.adaptive_avg_pool2d(self.layers(x), 1), 1))


TORCH_MOBILE: dict[str, Callable[[], nn.Module]] = {
    "efficientnet-b0": EfficientNet,
    "mobilenet-v3-large": lambda: MobileNetV3(LARGE, 1280),
    "mobilenet-v3-small": lambda: MobileNetV3(SMALL, 1024),
}
