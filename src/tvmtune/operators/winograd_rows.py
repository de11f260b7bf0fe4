"""Winograd's convolutions (:mod:`tvmtune.operators.winograd`) by rows of tiles.

Here a thread transforms a row of tiles, multiplies, and transforms back before it takes the next row.
Computed for the whole image at once, transformed values move between cores, because threads divide the
transforms by tiles but the products by positions within tiles. Those of a large image also go through
memory twice.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvmtune.operators import tiled_loops, winograd
from tvmtune.operators.winograd import Tiles
from tvmtune.operators.winograd_calls import Convolution, longest_share
from tvmtune.operators.winograd_transforms import Transforms
from tvmtune.passes.blocks import LEFT_ALONE
from tvmtune.passes.packed_products import Window, padded_rows

FEWEST, FEWEST_CACHED = 12, 7
"""The fewest tiles in a row: the former if the weights are loaded again for each row, the latter if
they stay in a core's second-level cache. Both are from times of SqueezeNet's, Inception v3's and
DenseNet-121's layers on a Zen 5."""
CACHED = 2**20
"""Bytes of weights that stay there, with the cache of a Zen 4 or Zen 5."""
UNEQUAL = 1.15
"""The longest share of rows, at most, in equal ones: 5 rows of 17x17 pixels take two cores 1.2 times as
long as the whole image at once on a Zen 4, and 9 of 35x35 0.9 times."""
HELD = 2**22
"""Bytes of transformed values that a thread has at a time, at most, where images are interleaved: with
2.6 MB it is 1.3 times as fast as the whole image at once on a Zen 3, with 11.8 MB 0.7 times."""


def applies(transforms: Transforms, conv: Convolution) -> bool:
    """Whether images are wide enough and there are several rows, and kernels have one part."""
    weights = 4 * prod(transforms.alpha) * conv.inputs * conv.outputs
    fewest = FEWEST_CACHED if weights <= CACHED else FEWEST
    rows = conv.images * conv.tiles_down(transforms)
    return transforms.parts == 1 and rows > 1 and conv.tiles_across(transforms) >= fewest


def is_parallel(transforms: Transforms, cores: int, conv: Convolution) -> bool:
    """Whether there are at least two rows of tiles for each core, and the cores' shares differ little;
    those of interleaved images are computed by one."""
    down, _ = conv.dilation
    rows = conv.images * conv.tiles_down(transforms) // down
    return rows >= 2 * cores and longest_share(rows, cores) <= UNEQUAL


def fits(transforms: Transforms, conv: Convolution) -> bool:
    """Whether a thread has no more than :data:`HELD` at a time, if there is dilation."""
    down, _ = conv.dilation
    tiles = down * conv.tiles_across(transforms)
    values = prod(transforms.alpha) * tiles * (conv.inputs + conv.outputs)
    return down == 1 or 4 * values <= HELD


def replace(transforms: Transforms, builder: Any, call: Any, values: bool = True) -> Any:
    """As :func:`winograd.replace`, for images that :func:`applies` accepted."""
    weight = winograd.transformed_weight(transforms, call, values)
    return winograd.replace_by(convolution, transforms, weight, builder, call)


def convolution(transforms: Transforms, data: Any, weight: Any, window: Window) -> Any:
    """As :func:`winograd.convolution`, in TE."""
    from tvm import tirx

    tiles = Tiles.of(transforms, data, int(weight.shape[2]), window)
    computed = padded_rows(tiles.columns)

    def patch(o: Any, y: Any, x: Any, p: Any, c: Any) -> Any:
        if computed > tiles.columns:  # what is computed beyond the last tile is not used
            p = tirx.min(p, tiles.columns - 1)
        return tiles.element(o, p, y, x, c)

    inverse = winograd.stages(
        *(transforms, (tiles.rows, computed), patch, weight),
        input_attrs=LEFT_ALONE,
        product_attrs={"schedule_rule": "tvmtune.winograd_rows"},
        output_attrs={**LEFT_ALONE, **tiles.attrs},
    )
    return tiles.stored(int(weight.shape[3]), lambda o, p, i, j, c: inverse[o, i, j, p, c])


def schedule(sch: Any, product: Any) -> list[Any]:
    """Rows of tiles in parallel; for each, products with tiles to be searched, and transforms as
    elsewhere."""
    (back,) = sch.get_consumers(product)
    (inverse,) = sch.get_consumers(back)
    packed = sch.get_producers(product)[0]
    (n, rows, *tasks), pixel = winograd.tile_output(sch, inverse)
    block, task = sch.fuse(n, rows), sch.fuse(*tasks)
    winograd.transform_output(sch, inverse, task, pixel)
    sch.compute_at(product, block, preserve_unit_loops=True)
    sch.compute_at(packed, block, preserve_unit_loops=True)
    winograd.transform_input(sch, packed)
    *_, a, b, p, c, k = sch.get_loops(product)
    around, _ = tiled_loops.tile(sch, product, (a, b, p, c), (k,))
    stored = sch.cache_write(product, 0, "global")
    sch.reverse_compute_at(stored, around, preserve_unit_loops=True)
    sch.parallel(block)
    return [sch]
