"""The partition of a network: which layers run on the accelerator, and as which packed
convolutions."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvmtune.errors import TvmtuneError
from tvmtune.quantize.layers import ConvolutionLayer, Layer
from tvmtune.quantize.region import QuantizedRegion, find_region
from tvmtune_vta.codegen import addition, knobs
from tvmtune_vta.codegen.convolution import is_feasible, why_infeasible
from tvmtune_vta.codegen.workload import Convolution
from tvmtune_vta.hardware.config import Config
from tvmtune_vta.hardware.rules import HAZARD_STEPS
from tvmtune_vta.tuning.conv2d_packed import EPILOGUE

if TYPE_CHECKING:
    import tvm

_NO_OPERAND = "none of its operands is on the accelerator"


@dataclass(frozen=True)
class Partition:
    """A quantized region, and what each of its layers is on VTA."""

    region: QuantizedRegion
    packed: dict[str, Convolution]
    """The packed convolutions, by the name of a layer's output."""
    refused: dict[str, str]
    """Layers that stay on the CPU, and why."""
    layers: tuple[Layer, ...]
    """All layers that run on the accelerator, in program order."""


def partition(
    graph: tvm.IRModule,
    config: Config,
    start: str | None,
    stop: str | None,
    name: str,
    *,
    may_be_empty: bool = False,
) -> Partition:
    """Find the region and pack the layers that can be packed; channels are padded to whole
    blocks. Raises :class:`TvmtuneError` if there are none, unless it ``may_be_empty``."""
    region = find_region(graph, start, stop, name=name)
    packed: dict[str, Convolution] = {}
    refused: dict[str, str] = {}
    layers: list[Layer] = []
    on_vta: set[str] = set()
    for layer in region.layers:
        if not isinstance(layer, ConvolutionLayer):
            why = "" if on_vta & set(layer.inputs) else _NO_OPERAND
            if not addition.largest_tile(config):
                why = f"{config.bitstream} has no room for a sum"
        else:
            why = _unsupported(layer, config) or _infeasible(convolution(layer, config), config)
        if why:
            refused[layer.output] = why
            continue
        if isinstance(layer, ConvolutionLayer):
            packed[layer.output] = convolution(layer, config)
        layers.append(layer)
        on_vta.add(layer.output)
    if not packed and not may_be_empty:
        reasons = sorted(refused.values(), key=lambda reason: reason == _NO_OPERAND)
        raise TvmtuneError(
            f"VTA can run none of the {len(refused)} layers of {name} between start and stop: "
            f"{reasons[0]}. tvmtune vta layers lists them all; start-op= and stop-op= move the ends"
        )
    return Partition(region, packed, refused, tuple(layers))


def convolution(layer: ConvolutionLayer, config: Config) -> Convolution:
    """The packed convolution of a layer, padded to whole blocks of channels and batches of the
    core."""
    batch, channels, height, width = layer.in_shapes[0]
    out, _, kernel_h, kernel_w = layer.kernel
    top, left, bottom, right = layer.padding
    unit = config.block if layer.groups == 1 else 1
    return Convolution(
        _round_up(batch, config.batch),
        height,
        width,
        _round_up(channels, unit),
        _round_up(out, unit),
        kernel_h,
        kernel_w,
        top,
        left,
        *layer.strides,
        layer.groups,
        bottom - top,
        right - left,
        *layer.input_dilation,
    )


def _unsupported(layer: ConvolutionLayer, config: Config) -> str:
    """Why a convolution cannot run on the accelerator; empty if it can."""
    if layer.dilation != (1, 1):
        return f"its kernel is dilated by {layer.dilation}"
    out, ins, _, _ = layer.kernel
    if layer.groups > 1 and (ins % config.block or out // layer.groups % config.block):
        return f"its {layer.groups} groups are not multiples of {config.block} channels"
    return ""


@functools.lru_cache(maxsize=256)
def _infeasible(conv: Convolution, config: Config) -> str:
    """Why no tile can be computed; empty if one can."""
    if any(is_feasible(conv, EPILOGUE, each, config) for each in knobs.points(conv, config)):
        return ""
    if conv.out_height * conv.out_width * (conv.batch // config.batch) <= HAZARD_STEPS:
        # Then it may be the number of outputs, and not the size of a tile.
        reasons = {why_infeasible(conv, EPILOGUE, k, config) for k in knobs.points(conv, config)}
        if all("written twice" in reason for reason in reasons):
            return max(reasons)
    return f"no tile fits the memories and instructions of {config.bitstream}"


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
