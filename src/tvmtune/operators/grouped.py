"""Convolutions with groups, in tiles of whole vectors of a group's channels.

TVM's rules split 24 channels of a group into vectors of 8, half of those of AVX-512, and a tile has one
of three vectors. Here the channels of each group are rounded up to whole vectors, of which a tile may
have any number. Channels that are added have weights of zero and are not stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmtune.operators import convolution_calls, padded, tiled_loops
from tvmtune.passes.fusable_calls import call_fusable
from tvmtune.passes.packed_products import FEWEST
from tvmtune.types import product

Vectors = Callable[[int, int], int | None]
"""How many vectors to compute for (pixels of a line, channels of a group); None if such tiles are no
better."""
RULE = "tvmtune.grouped"
_STORED = "stored"
"""Block that stores the channels that exist."""


def applies_to(vectors: Vectors, call: Any) -> bool:
    """One to three dimensions, channels last, float32, constant weights, at least :data:`FEWEST` pixels
    and as many terms of a sum, and channels of a group that ``vectors`` accepts."""
    if not convolution_calls.is_plain(call, grouped=True) or int(call.attrs.groups) == 1:
        return False
    *image, channels = (int(extent) for extent in call.ty.shape)
    *terms, _ = (int(extent) for extent in call.args[1].ty.shape)
    group = channels // int(call.attrs.groups)
    return min(product(image), product(terms)) >= FEWEST and vectors(image[-1], group) is not None


def replace(vectors: Vectors, lanes: int, builder: Any, call: Any, values: bool = True) -> Any:
    """The same convolution for a call that :func:`applies_to` accepted, in vectors of so many lanes.
    Without ``values`` weights stay uninitialized."""
    output = [int(n) for n in call.ty.shape]
    groups = int(call.attrs.groups)
    group = output[-1] // groups
    count = vectors(output[-2], group)
    assert count is not None
    reads = convolution_calls.Reads.of(call)

    def program(data: Any, weight: Any) -> Any:
        from tvm import te

        data = reads.padded(data, {})  # a tile pads what it reads
        *window, depth, _ = (int(n) for n in weight.shape)
        taps = reads.taps(window)
        k = te.reduce_axis((0, depth), "k")

        def sums(image: Any, g: Any, vector: Any, *at: Any) -> Any:
            *pixel, lane = at
            channel = (g * count + vector) * lanes + lane
            value = data[(image, *reads.at(pixel, taps), g * depth + k)]
            return te.sum(value * weight[(*taps, k, channel)], axis=[*taps, k])

        # TVM makes one of loops whose sums are next to each other, and LLVM four vectors of three.
        shape = [output[0], groups, count, *output[1:-1], lanes]
        vectors_of_sums = te.compute(shape, sums, name="product", attrs={"schedule_rule": RULE})

        def stored(image: Any, *at: Any) -> Any:
            *pixel, g, channel = at
            return vectors_of_sums[(image, g, channel // lanes, *pixel, channel % lanes)]

        result = te.compute([*output[:-1], groups, group], stored, name=_STORED)
        return te.compute(
            output,
            lambda *at: result[(*at[:-1], at[-1] // group, at[-1] % group)],
            name=f"conv{reads.dims}d_grouped",
        )

    data, weight = call.args
    weight = padded.padded_constant(weight, count * lanes, values, groups)
    return call_fusable(builder, program, data, weight, name=f"conv{reads.dims}d_grouped")


def schedule(sch: Any, block: Any) -> list[Any]:
    """Tiles of a line's pixels and of a group's vectors to be searched, each with its epilogue."""
    stored = sch.get_sblock(_STORED)
    last = tiled_loops.inline_epilogue(sch, stored)
    is_broadcast = _size(sch, last) > _size(sch, stored)
    image, groups, vector, *loops = sch.get_loops(block)
    axes = len(sch.get_loops(stored)) - 3
    if is_broadcast:  # its elements do not belong to one tile
        sch.compute_inline(stored)
    else:
        sch.reverse_compute_inline(last)
    pixels, lanes, terms = loops[:axes], loops[axes], loops[axes + 1 :]
    width = int(sch.get(lanes).extent)
    *lines, pixel = pixels
    data, weights = (product([int(n) for n in read.source.shape]) for read in sch.get(block).reads)
    # What comes first is shared by the threads: each then reads its part of the larger operand.
    outer = [groups, *lines] if weights > data else [*lines, groups]
    tiled = [image, *outer, pixel, vector]
    around, _ = tiled_loops.tile(sch, block, tiled, terms, lanes)
    if is_broadcast:
        return [sch]
    sch.reverse_compute_at(stored, around, preserve_unit_loops=True)
    channels = sch.get_loops(stored)[-1]
    if int(sch.get(channels).extent) > width:
        sch.split(channels, [None, width])
    return [sch]


def _size(sch: Any, block: Any) -> int:
    return product([int(v.dom.extent) for v in sch.get(block).iter_vars])
