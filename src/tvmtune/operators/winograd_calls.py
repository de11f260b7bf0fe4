"""To which convolutions Winograd's algorithms apply, and which of them should be the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

from tvmtune.operators import convolution_calls
from tvmtune.operators.winograd_transforms import TILES, Transform, Transforms

LANES = 16
"""Channels per vector in the transforms, at most."""
_TRANSFORM = 25
"""Time to transform a value, to store it and to load it again, in multiply-adds of a matrix product."""
_LOAD = 13
"""Time to load a weight from memory, in multiply-adds.

Both fit the times of two hardware threads of a Xeon with AVX-512 for the 3x3 convolutions of ResNet-18,
SqueezeNet, Inception v3, DenseNet-121 and GoogLeNet."""
GAIN = 0.85
"""Part of the direct algorithm's time, at most, for which another one is preferred; and of that of one
that rounds less, for which one that rounds more is."""


@dataclass(frozen=True)
class Convolution:
    """The extents of a ``relax.nn.conv1d``, ``conv2d`` or ``conv3d``, channels last."""

    images: int
    """How many: with frames, those of the output."""
    height: int
    """Of the output; 1 for a signal."""
    width: int
    kernel: tuple[int, int]
    """Down and across; 1 down for a signal."""
    dilation: tuple[int, int]
    """Down and across; 1 where the kernel has one weight."""
    inputs: int
    """Channels, those of all frames that an output reads."""
    outputs: int

    @classmethod
    def of(cls, call: Any) -> Convolution:
        *images, width, _ = (int(extent) for extent in call.ty.shape)
        *frames, across, ci, co = (int(extent) for extent in call.args[1].ty.shape)
        *apart, far_across = (int(each) for each in call.attrs.dilation)
        height, down, far_down = 1, 1, 1
        if apart:
            *images, height = images
            *frames, down = frames
            far_down = apart[-1]
        dilation = (far_down if down > 1 else 1, far_across if across > 1 else 1)
        kernel = (down, across)
        return cls(prod(images), height, width, kernel, dilation, prod(frames) * ci, co)

    @property
    def pixels(self) -> int:
        return self.images * self.height * self.width

    @property
    def is_dense(self) -> bool:
        return self.dilation == (1, 1)

    def tiles(self, transforms: Transforms) -> int:
        """Of all images."""
        return self.images * self.tiles_down(transforms) * self.tiles_across(transforms)

    def tiles_down(self, transforms: Transforms) -> int:
        """Of one image, those of interleaved images included."""
        return tiles_along(transforms.down, self.height, self.dilation[0])

    def tiles_across(self, transforms: Transforms) -> int:
        """As :meth:`tiles_down`, in a row."""
        return tiles_along(transforms.across, self.width, self.dilation[1])

    def time(self, transforms: Transforms | None, per_weight: float = _LOAD) -> float:
        """In multiply-adds of a matrix product; of the direct algorithm without transforms.
        ``per_weight`` is what each weight that is multiplied takes besides its products."""
        products = self.inputs * self.outputs
        if transforms is None:
            return prod(self.kernel) * products * (self.pixels + per_weight)
        products *= transforms.parts
        count = self.tiles(transforms)
        transformed = _TRANSFORM * count * (self.inputs + self.outputs)
        return prod(transforms.alpha) * (products * (count + per_weight) + transformed)

    def fastest(self) -> Transforms | None:
        """What should take the least time; None for the direct algorithm, and unless a seventh of the
        time is saved."""
        best, least = None, GAIN * self.time(None)
        for transforms in TILES:
            if transforms.kernel == self.kernel and (taken := self.time(transforms)) < least:
                best, least = transforms, GAIN * taken
        return best

    def saves_a_third(self, transforms: Transforms) -> bool:
        """Of the multiplications: whether interleaved images are not mostly what is added to fill
        tiles."""
        products = transforms.parts * prod(transforms.alpha) * self.tiles(transforms)
        return 3 * products <= 2 * prod(self.kernel) * self.pixels


def vector_lanes(channels: int) -> int:
    """How many of so many channels a vector has in the transforms, so that all vectors are whole."""
    return gcd(channels, LANES)


def longest_share(parts: int, cores: int) -> float:
    """The time of the core with most of so many parts, in that of equal shares."""
    return -(-parts // cores) * cores / parts


def tiles_along(transform: Transform, outputs: int, dilation: int) -> int:
    """How many tiles an image has along an axis with so many outputs."""
    return dilation * -(-outputs // (dilation * transform.tile))


def fitting(choices: Sequence[Transforms], call: Any, fewest_lanes: int = 1) -> Transforms | None:
    """The first of these that applies to a convolution with stride 1, one group, float32 data with
    channels last, constant weights and, as channels, multiples of ``fewest_lanes``; with dilation, to
    images of which it saves a third of the multiplications. With frames, any number of them and any
    stride between them, without dilation. Kernels of several parts are for images of one row: parts
    would read tiles of the next. None if there is none."""
    if not convolution_calls.is_plain(call):
        return None
    attrs = call.attrs
    strides, dilation = ([int(n) for n in each] for each in (attrs.strides, attrs.dilation))
    *window, ci, co = (int(extent) for extent in call.args[1].ty.shape)
    has_frames = len(window) == 3
    # Vectors must not cross frames.
    fewest_inputs = LANES if has_frames and window[0] > 1 else fewest_lanes
    if vector_lanes(ci) < fewest_inputs or vector_lanes(co) < fewest_lanes:
        return None
    if any(step > 1 for step in strides[-2:]):
        return None
    conv = Convolution.of(call)

    def applies(transforms: Transforms) -> bool:
        if transforms.kernel != conv.kernel:
            return False
        if has_frames:
            return transforms.parts == 1 and all(apart == 1 for apart in dilation)
        has_one_row = conv.images * conv.height == 1
        return (transforms.parts == 1 or has_one_row) and (
            conv.is_dense or conv.saves_a_third(transforms)
        )

    return next(filter(applies, choices), None)
