"""Which layers of a network go to the accelerator, and as which packed convolutions."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvmtune.errors import TvmtuneError
from tvmtune.quantise.region import Layer, Region, find
from tvmtune_vta import knobs
from tvmtune_vta.compute import EPILOGUE
from tvmtune_vta.config import Config
from tvmtune_vta.convolution import fits
from tvmtune_vta.workload import Convolution

if TYPE_CHECKING:
    import tvm


@dataclass(frozen=True)
class Split:
    """A region with what each of its layers is on VTA."""

    region: Region
    packed: dict[str, Convolution]
    """By the name of a layer's output, the convolutions."""
    refused: dict[str, str]
    """Layers that stay on the CPU, and why."""
    layers: tuple[Layer, ...]
    """All that go to the accelerator, in program order."""


def split(
    graph: tvm.IRModule, config: Config, start: str | None, stop: str | None, name: str
) -> Split:
    """Find the region and pack what can be packed; channels are padded to whole blocks."""
    region = find(graph, start, stop, name=name)
    packed: dict[str, Convolution] = {}
    refused: dict[str, str] = {}
    layers: list[Layer] = []
    made: set[str] = set()
    for layer in region.layers:
        if layer.kind == "sum":
            why = "" if made & set(layer.inputs) else "nothing that it adds is on the accelerator"
        else:
            why = _refusal(layer, config) or _misfit(convolution(layer, config), config)
        if why:
            refused[layer.output] = why
            continue
        if layer.kind == "convolution":
            packed[layer.output] = convolution(layer, config)
        layers.append(layer)
        made.add(layer.output)
    if not packed:
        raise TvmtuneError(
            f"none of the {len(refused)} layers of {name} between start and stop fits VTA: "
            f"{next(iter(refused.values()))}."
        )
    return Split(region, packed, refused, tuple(layers))


def convolution(layer: Layer, config: Config) -> Convolution:
    """A layer in whole blocks of channels, and whole batches of the core."""
    batch, channels, height, width = layer.in_shapes[0]
    out, _, kernel_h, kernel_w = layer.kernel
    top, left, bottom, right = layer.padding
    unit = config.block if layer.groups == 1 else 1
    return Convolution(
        _whole(batch, config.batch),
        height,
        width,
        _whole(channels, unit),
        _whole(out, unit),
        kernel_h,
        kernel_w,
        top,
        left,
        *layer.strides,
        layer.groups,
        bottom - top,
        right - left,
        *layer.up,
    )


def _refusal(layer: Layer, config: Config) -> str:
    """Why a convolution cannot go to the accelerator; empty if it can."""
    if layer.dilation != (1, 1):
        return f"its kernel is dilated by {layer.dilation}"
    out, ins, _, _ = layer.kernel
    if layer.groups > 1 and (ins % config.block or out // layer.groups % config.block):
        return f"its {layer.groups} groups are no multiples of {config.block} channels"
    return ""


@functools.lru_cache(maxsize=256)
def _misfit(conv: Convolution, config: Config) -> str:
    """Why no tile can be computed; empty if one can."""
    if any(fits(conv, EPILOGUE, each, config) for each in knobs.points(conv, config)):
        return ""
    return f"no tile of it fits the memories and instructions of {config.bitstream}"


def _whole(value: int, unit: int) -> int:
    return -(-value // unit) * unit
