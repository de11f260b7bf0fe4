"""The zoo again as independently written PyTorch modules, to compare outputs with.

Submodules are declared in the order in which they compute, so that weights can be filled in by order.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn


def with_weights(module: nn.Module, model: onnx.ModelProto) -> nn.Module:
    """``module`` for inference with the weights of ``model``, one after another."""
    kinds = {"weight", "bias", "running_mean", "running_var"}  # others are shapes, bounds, masks
    ours = [w for w in model.graph.initializer if w.name.rpartition(".")[2] in kinds]
    slots = {key: t for key, t in module.state_dict(keep_vars=True).items() if t.dim()}
    for weight, (key, tensor) in zip(ours, slots.items(), strict=True):
        assert tuple(weight.dims) == tuple(tensor.shape), (weight.name, key)
        tensor.data = torch.from_numpy(numpy_helper.to_array(weight).copy())
    return module.eval()


def flat_average(x: Tensor) -> Tensor:
    return x.flatten(2).mean(dim=2)


class Normed(nn.Module):
    """Convolution without a bias, batch norm and perhaps an activation."""

    def __init__(self, inner, outer, kernel, act=None, *, dims=2, eps=1e-5, **options):
        super().__init__()
        conv, norm = (nn.Conv2d, nn.BatchNorm2d) if dims == 2 else (nn.Conv3d, nn.BatchNorm3d)
        self.conv = conv(inner, outer, kernel, bias=False, **options)
        self.norm = norm(outer, eps=eps)
        self.act = act or nn.Identity()

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


class Residual(nn.Module):
    """Before, shortcut, last: in the order of the zoo's weights."""

    def __init__(self, inner: int, width: int, stride: int, *, bottleneck: bool, dims: int):
        super().__init__()
        outer = width * 4 if bottleneck else width
        three = {"padding": 1, "stride": stride, "dims": dims}
        if bottleneck:
            self.before = nn.Sequential(
                Normed(inner, width, 1, nn.ReLU(), dims=dims),
                Normed(width, width, 3, nn.ReLU(), **three),
            )
        else:
            self.before = Normed(inner, width, 3, nn.ReLU(), **three)
        same = inner == outer and stride == 1
        self.shortcut = nn.Identity() if same else Normed(inner, outer, 1, stride=stride, dims=dims)
        self.last = Normed(
            width, outer, 1 if bottleneck else 3, padding=0 if bottleneck else 1, dims=dims
        )

    def forward(self, x):
        return torch.relu(self.shortcut(x) + self.last(self.before(x)))


def residual_stages(counts: list[int], *, bottleneck: bool = False, dims: int = 2) -> nn.Module:
    blocks, inner = [], 64
    for stage, count in enumerate(counts):
        for index in range(count):
            stride = 2 if stage > 0 and index == 0 else 1
            width = 64 * 2**stage
            blocks.append(Residual(inner, width, stride, bottleneck=bottleneck, dims=dims))
            inner = width * (4 if bottleneck else 1)
    return nn.Sequential(*blocks)


class ResNet(nn.Module):
    def __init__(self, counts: list[int], *, bottleneck: bool = False):
        super().__init__()
        self.stem = Normed(3, 64, 7, nn.ReLU(), stride=2, padding=3)
        self.blocks = residual_stages(counts, bottleneck=bottleneck)
        self.head = nn.Linear(2048 if bottleneck else 512, 1000)

    def forward(self, x):
        x = nn.functional.max_pool2d(self.stem(x), 3, 2, 1)
        return self.head(flat_average(self.blocks(x)))


class ResNet3d(nn.Module):
    def __init__(self, counts: list[int]):
        super().__init__()
        self.stem = Normed(3, 64, (3, 7, 7), nn.ReLU(), stride=(1, 2, 2), padding=(1, 3, 3), dims=3)
        self.blocks = residual_stages(counts, dims=3)
        self.head = nn.Linear(512, 400)

    def forward(self, x):
        return self.head(flat_average(self.blocks(self.stem(x))))


class Vgg(nn.Module):
    def __init__(self, counts: list[int]):
        super().__init__()
        layers, inner = [], 3
        for count, outer in zip(counts, (64, 128, 256, 512, 512), strict=True):
            for _ in range(count):
                layers += [nn.Conv2d(inner, outer, 3, padding=1), nn.ReLU()]
                inner = outer
            layers.append(nn.MaxPool2d(2))
        layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten()]
        layers += [nn.Linear(512 * 7 * 7, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(4096, 1000))

    def forward(self, x):
        return self.layers(x)


class MobileNet(nn.Module):
    def __init__(self):
        super().__init__()
        layers, inner = [Normed(3, 32, 3, nn.ReLU(), stride=2, padding=1)], 32
        steps = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)]
        for outer, stride in [*steps, *[(512, 1)] * 5, (1024, 2), (1024, 1)]:
            layers += [
                Normed(inner, inner, 3, nn.ReLU(), stride=stride, padding=1, groups=inner),
                Normed(inner, outer, 1, nn.ReLU()),
            ]
            inner = outer
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(1024, 1000)

    def forward(self, x):
        return self.head(flat_average(self.layers(x)))


class Inverted(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int, factor: int):
        super().__init__()
        wide = inner * factor
        self.skip = stride == 1 and inner == outer
        self.layers = nn.Sequential(
            *([Normed(inner, wide, 1, nn.ReLU6())] if factor > 1 else []),
            Normed(wide, wide, 3, nn.ReLU6(), stride=stride, padding=1, groups=wide),
            Normed(wide, outer, 1),
        )

    def forward(self, x):
        return x + self.layers(x) if self.skip else self.layers(x)


class MobileNetV2(nn.Module):
    def __init__(self):
        super().__init__()
        layers, inner = [Normed(3, 32, 3, nn.ReLU6(), stride=2, padding=1)], 32
        table = [(16, 1, 1), (24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2)]
        for outer, count, stride in [*table, (320, 1, 1)]:
            for index in range(count):
                factor = 1 if outer == 16 else 6
                layers.append(Inverted(inner, outer, 1 if index else stride, factor))
                inner = outer
        self.layers = nn.Sequential(*layers, Normed(inner, 1280, 1, nn.ReLU6()))
        self.head = nn.Linear(1280, 1000)

    def forward(self, x):
        return self.head(flat_average(self.layers(x)))


class Fire(nn.Module):
    def __init__(self, inner: int, narrow: int, each: int):
        super().__init__()
        self.squeeze = nn.Conv2d(inner, narrow, 1)
        self.one = nn.Conv2d(narrow, each, 1)
        self.three = nn.Conv2d(narrow, each, 3, padding=1)

    def forward(self, x):
        x = self.squeeze(x).relu()
        return torch.cat([self.one(x).relu(), self.three(x).relu()], dim=1)


def _squeezenet(stem: nn.Module, fires: dict[int, tuple[int, int, int]], pools: set[int]):
    """``fires`` by the paper's numbers; a pooling follows each of ``pools``, where the stem is 1."""
    layers = [stem, nn.ReLU()]
    for number in range(1, 10):
        if number in fires:
            layers.append(Fire(*fires[number]))
        if number in pools:
            layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
    layers += [nn.Conv2d(512, 1000, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers)


def squeezenet(version: str) -> nn.Module:
    fires = {
        2: (64 if version == "1.1" else 96, 16, 64),
        3: (128, 16, 64),
        4: (128, 32, 128),
        5: (256, 32, 128),
        6: (256, 48, 192),
        7: (384, 48, 192),
        8: (384, 64, 256),
        9: (512, 64, 256),
    }
    if version == "1.1":
        return _squeezenet(nn.Conv2d(3, 64, 3, stride=2), fires, {1, 3, 5})
    return _squeezenet(nn.Conv2d(3, 96, 7, stride=2), fires, {1, 4, 8})


def unit(inner: int, outer: int, kernel, **options) -> nn.Module:
    return Normed(inner, outer, kernel, nn.ReLU(), eps=1e-3, **options)


class Branches(nn.Module):
    """Several ways through one grid, side by side."""

    def __init__(self, *ways: nn.Module):
        super().__init__()
        self.ways = nn.ModuleList(ways)

    def forward(self, x):
        return torch.cat([way(x) for way in self.ways], dim=1)


def pooled(inner: int, outer: int) -> nn.Module:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), unit(inner, outer, 1))


def inception_a(inner: int, features: int) -> nn.Module:
    return Branches(
        unit(inner, 64, 1),
        nn.Sequential(unit(inner, 48, 1), unit(48, 64, 5, padding=2)),
        nn.Sequential(unit(inner, 64, 1), unit(64, 96, 3, padding=1), unit(96, 96, 3, padding=1)),
        pooled(inner, features),
    )


def inception_c(inner: int, mid: int) -> nn.Module:
    wide, high = {"padding": (0, 3)}, {"padding": (3, 0)}
    return Branches(
        unit(inner, 192, 1),
        nn.Sequential(
            unit(inner, mid, 1), unit(mid, mid, (1, 7), **wide), unit(mid, 192, (7, 1), **high)
        ),
        nn.Sequential(
            unit(inner, mid, 1),
            unit(mid, mid, (7, 1), **high),
            unit(mid, mid, (1, 7), **wide),
            unit(mid, mid, (7, 1), **high),
            unit(mid, 192, (1, 7), **wide),
        ),
        pooled(inner, 192),
    )


def inception_e(inner: int) -> nn.Module:
    def split() -> nn.Module:
        return Branches(
            unit(384, 384, (1, 3), padding=(0, 1)), unit(384, 384, (3, 1), padding=(1, 0))
        )

    return Branches(
        unit(inner, 320, 1),
        nn.Sequential(unit(inner, 384, 1), split()),
        nn.Sequential(unit(inner, 448, 1), unit(448, 384, 3, padding=1), split()),
        pooled(inner, 192),
    )


def inception_v3() -> nn.Module:
    reduce_a = Branches(
        unit(288, 384, 3, stride=2),
        nn.Sequential(unit(288, 64, 1), unit(64, 96, 3, padding=1), unit(96, 96, 3, stride=2)),
        nn.MaxPool2d(3, 2),
    )
    reduce_c = Branches(
        nn.Sequential(unit(768, 192, 1), unit(192, 320, 3, stride=2)),
        nn.Sequential(
            unit(768, 192, 1),
            unit(192, 192, (1, 7), padding=(0, 3)),
            unit(192, 192, (7, 1), padding=(3, 0)),
            unit(192, 192, 3, stride=2),
        ),
        nn.MaxPool2d(3, 2),
    )
    return nn.Sequential(
        unit(3, 32, 3, stride=2),
        unit(32, 32, 3),
        unit(32, 64, 3, padding=1),
        nn.MaxPool2d(3, 2),
        unit(64, 80, 1),
        unit(80, 192, 3),
        nn.MaxPool2d(3, 2),
        inception_a(192, 32),
        inception_a(256, 64),
        inception_a(288, 64),
        reduce_a,
        *(inception_c(768, mid) for mid in (128, 160, 160, 192)),
        reduce_c,
        inception_e(1280),
        inception_e(2048),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2048, 1000),
    )


class DenseLayer(nn.Module):
    def __init__(self, inner: int):
        super().__init__()
        self.norm = nn.BatchNorm2d(inner)
        self.narrow = Normed(inner, 128, 1, nn.ReLU())
        self.grow = nn.Conv2d(128, 32, 3, padding=1, bias=False)

    def forward(self, x):
        return torch.cat([x, self.grow(self.narrow(self.norm(x).relu()))], dim=1)


def densenet_121() -> nn.Module:
    layers = [Normed(3, 64, 7, nn.ReLU(), stride=2, padding=3), nn.MaxPool2d(3, 2, 1)]
    width = 64
    for count in (6, 12, 24, 16):
        layers += [DenseLayer(width + 32 * index) for index in range(count)]
        width += 32 * count
        layers += [nn.BatchNorm2d(width), nn.ReLU()]
        if count != 16:
            layers += [nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)]
            width //= 2
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000)]
    return nn.Sequential(*layers)


TORCH_ZOO: dict[str, Callable[[], nn.Module]] = {
    "densenet-121": densenet_121,
    "inception_v3": inception_v3,
    "mobilenet": MobileNet,
    "mobilenet-v2": MobileNetV2,
    "resnet-18": lambda: ResNet([2, 2, 2, 2]),
    "resnet-34": lambda: ResNet([3, 4, 6, 3]),
    "resnet-50": lambda: ResNet([3, 4, 6, 3], bottleneck=True),
    "resnet-101": lambda: ResNet([3, 4, 23, 3], bottleneck=True),
    "resnet-152": lambda: ResNet([3, 8, 36, 3], bottleneck=True),
    "resnet3d-18": lambda: ResNet3d([2, 2, 2, 2]),
    "resnet3d-34": lambda: ResNet3d([3, 4, 6, 3]),
    "squeezenet_v1.0": lambda: squeezenet("1.0"),
    "squeezenet_v1.1": lambda: squeezenet("1.1"),
    "vgg-11": lambda: Vgg([1, 1, 2, 2, 2]),
    "vgg-13": lambda: Vgg([2, 2, 2, 2, 2]),
    "vgg-16": lambda: Vgg([2, 2, 3, 3, 3]),
    "vgg-19": lambda: Vgg([2, 2, 4, 4, 4]),
}
