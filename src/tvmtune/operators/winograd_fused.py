"""Winograd's convolutions (:mod:`tvmtune.operators.winograd`) that transform weights at run time.

With few tiles, transformed weights take longer to load than to multiply: those of F(4x4, 3x3) have four
times the size. Here a thread loads the weights of some output channels as they are, transforms those
of a few input channels, and multiplies all tiles by them while they are in the core's own caches.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tvmtune.arrays import empty
from tvmtune.operators import prefetch, tiled_loops, winograd
from tvmtune.operators.combinations import combine
from tvmtune.operators.winograd import Tiles
from tvmtune.operators.winograd_calls import GAIN, LANES, Convolution, longest_share, vector_lanes
from tvmtune.operators.winograd_transforms import TILES, Transforms
from tvmtune.passes import constants
from tvmtune.passes.blocks import LEFT_ALONE
from tvmtune.passes.packed_products import Window

RULE = "tvmtune.winograd_fused"
MOST = 36
"""Tiles, at most. Their sums for 16 output channels, 81 KiB with F(4x4, 3x3), stay in a core's caches
while all input channels are added."""
_LOAD = 8
"""Time to load a weight, in multiply-adds of a matrix product. It is less than that in
:mod:`tvmtune.operators.winograd_calls` because later weights are asked for early."""
_TRANSFORM_WEIGHT = 3
"""The same to compute a transformed weight."""
_ADD = 0.2
"""The same, for each tile and transformed weight, to load and store sums: that happens once for the 8
or 16 input channels that the default schedule adds at a time.

All three fit the times of a Zen 4, with weights from memory: 7x7 pixels and 512 channels take 0.78 ms
with F(4x4, 3x3), 0.98 with F(2x2, 3x3), and 1.28 by the direct algorithm; 20x20 pixels and 256 channels
0.85 ms with F(4x4, 3x3), and 0.92 with weights that are transformed at compile time."""


def applies(transforms: Transforms, conv: Convolution) -> bool:
    """Whether there are few tiles, output channels fill vectors, and kernels have one part."""
    is_whole = conv.outputs % LANES == 0 and transforms.parts == 1
    return is_whole and conv.tiles(transforms) <= MOST


def prefers(transforms: Transforms, cores: int, conv: Convolution) -> bool:
    """Whether it should be the fastest program on so many cores, for few tiles."""
    taken = _time(transforms, cores, conv)
    choices = [each for each in TILES if each.kernel == conv.kernel]
    exact = choices[: choices.index(transforms)]  # those that round less
    others = [conv.time(each) for each in (None, *exact)]
    others += [_time(each, cores, conv) for each in exact if applies(each, conv)]
    return taken < min(conv.time(transforms), GAIN * min(others))


def _time(transforms: Transforms, cores: int, conv: Convolution) -> float:
    """As :meth:`Convolution.time`. Cores share blocks of output channels, of which there may be few."""
    loads = _LOAD * prod(conv.kernel) / prod(transforms.alpha)
    sums = _ADD * conv.tiles(transforms)
    share = longest_share(conv.outputs // LANES, cores)
    return share * conv.time(transforms, _TRANSFORM_WEIGHT + loads + sums)


def replace(transforms: Transforms, builder: Any, call: Any, values: bool = True) -> Any:
    """As :func:`winograd.replace`, for few tiles."""
    if values:
        packed = pack(constants.values(call.args[1]), transforms.kernel)
    else:
        conv = Convolution.of(call)
        packed = empty((conv.outputs // LANES, conv.inputs, *conv.kernel, LANES), "float32")
    return winograd.replace_by(convolution, transforms, packed, builder, call)


def pack(weight: np.ndarray, kernel: tuple[int, int]) -> np.ndarray:
    """(kh, kw, ci, co), (d, kh, kw, ci, co) or, of a signal, (kw, ci, co) to (co / 16, d * ci, kh, kw,
    16), in the order of use."""
    *_, ci, co = weight.shape
    split = weight.reshape(-1, *kernel, ci, co // LANES, LANES)
    packed = split.transpose(4, 0, 3, 1, 2, 5)
    return np.ascontiguousarray(packed.reshape(co // LANES, -1, *kernel, LANES))


def convolution(transforms: Transforms, data: Any, weight: Any, window: Window) -> Any:
    """As :func:`winograd.convolution`, in TE, with weights from :func:`pack`."""
    from tvm import te

    transforms = transforms.with_unit_weights()
    alpha = transforms.alpha
    blocks, ci = (int(extent) for extent in weight.shape[:2])
    group = vector_lanes(ci)
    tiles = Tiles.of(transforms, data, ci, window)
    count = tiles.rows * tiles.columns

    def patch(g: Any, y: Any, x: Any, p: Any, c: Any) -> Any:
        return tiles.element(p // tiles.columns, p % tiles.columns, y, x, g * group + c)

    # Values of neighboring channels are neighbors for all tiles: rows of all channels would be
    # a multiple of a page apart, and displace each other from the first-level cache.
    packed = winograd.input_stages(
        *(transforms, (ci // group, count, group), patch),
        {"schedule_rule": "tvmtune.winograd_input"},
    )

    def weight_rows(o: Any, a: Any, j: Any, k: Any, c: Any) -> Any:
        return combine(transforms.down.weight, a, lambda i: weight[o, k, i, j, c])

    def weight_columns(o: Any, a: Any, b: Any, k: Any, c: Any) -> Any:
        return combine(transforms.across.weight, b, lambda j: half[o, a, j, k, c])

    def total(o: Any, a: Any, b: Any, p: Any, c: Any) -> Any:
        return te.sum(packed[k // group, a, b, p, k % group] * transformed[o, a, b, k, c], axis=k)

    half = te.compute(
        (blocks, alpha[0], transforms.across.kernel, ci, LANES),
        weight_rows,
        name="winograd_weight_rows",
        attrs=LEFT_ALONE,
    )
    transformed = te.compute(
        (blocks, *alpha, ci, LANES), weight_columns, name="winograd_weight", attrs=LEFT_ALONE
    )
    k = te.reduce_axis((0, ci), "k")
    products = te.compute(
        (blocks, *alpha, count, LANES),
        total,
        name="winograd_product",
        attrs={"schedule_rule": RULE},
    )
    inverse = winograd.output_stages(transforms, products, {**LEFT_ALONE, **tiles.attrs})
    return tiles.stored(
        blocks * LANES,
        lambda o, p, i, j, c: inverse[c // LANES, i, j, o * tiles.columns + p, c % LANES],
    )


def schedule(sch: Any, block: Any) -> list[Any]:
    """Vectors of output channels in parallel; for each, products with tiles to be searched, within them
    the transform of their weights, and then that of the output."""
    (back,) = sch.get_consumers(block)
    (inverse,) = sch.get_consumers(back)
    transformed = next(p for p in sch.get_producers(block) if "weight" in sch.get(p).name_hint)
    (*tasks, channels), pixel = winograd.tile_output(sch, inverse)
    sch.reorder(channels, *tasks)
    winograd.transform_output(sch, inverse, sch.fuse(*tasks), pixel)
    sch.compute_at(block, channels, preserve_unit_loops=True)
    *_, a, b, p, lanes, k = sch.get_loops(block)
    _, terms = tiled_loops.tile(sch, block, (a, b, p), (k,), lanes)
    _transform_weight(sch, transformed, terms)
    sch.parallel(channels)
    return [sch]


def _transform_weight(sch: Any, transformed: Any, terms: Any) -> None:
    """Transform the weights of one input channel at a time within ``terms``, a loop over parts of the
    input channels."""
    rows = sch.get_producers(transformed)[0]
    sch.compute_at(transformed, terms, preserve_unit_loops=True)
    *_, o, a, b, k, lanes = sch.get_loops(transformed)
    sch.reorder(o, k, a, b, lanes)
    sch.compute_at(rows, k, preserve_unit_loops=True)
    for loop in (*sch.get_loops(rows)[-5:-1], a, b):
        sch.unroll(loop)
    for each in (rows, transformed):
        sch.vectorize(sch.get_loops(each)[-1])
    sch.annotate(k, prefetch.READ_ONCE, 1)
