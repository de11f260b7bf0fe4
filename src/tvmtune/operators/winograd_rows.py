"""Winograd's convolutions for large images (:mod:`tvmtune.operators.winograd`), by rows of tiles.

All transformed values of such an image exceed a core's caches: they would be written to memory, and
read again, twice. Here a thread transforms a row of tiles, multiplies, and transforms back before it
takes the next row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmtune.operators import winograd
from tvmtune.operators.winograd import LANES, Transform, combine
from tvmtune.passes.packed_products import padded_rows

CACHED = 3 * 2**20
"""Bytes of all transformed values up to which there is nothing to gain."""
FEWEST = 12
"""The fewest tiles in a row: with fewer, loading the weights for each row takes too long."""


def applies(transform: Transform, call: Any) -> bool:
    """As :func:`winograd.applies`, for large images."""
    if not winograd.applies(call):
        return False
    _, _, ci, co = (int(extent) for extent in call.args[1].ty.shape)
    n, height, width, _ = (int(extent) for extent in call.ty.shape)
    rows, columns = (-(-extent // transform.tile) for extent in (height, width))
    values = n * rows * columns * transform.alpha**2 * (ci + co)
    return columns >= FEWEST and 4 * values > CACHED


def is_parallel(transform: Transform, cores: int, call: Any) -> bool:
    """Whether there are at least two rows of tiles for each core."""
    n, height, *_ = (int(extent) for extent in call.ty.shape)
    return n * -(-height // transform.tile) >= 2 * cores


def replace(transform: Transform, builder: Any, call: Any, values: bool = True) -> Any:
    """As :func:`winograd.replace`, for a ``relax.nn.conv2d`` that :func:`applies` accepted."""
    return winograd.replace_by(convolution, transform, builder, call, values)


def convolution(transform: Transform, data: Any, weight: Any, padding: Sequence[int]) -> Any:
    """As :func:`winograd.convolution`, in TE."""
    from tvm import te, tirx, topi

    tile, alpha = transform.tile, transform.alpha
    n, h, w, ci = (int(d) for d in data.shape)
    co = int(weight.shape[3])
    top, left, bottom, right = padding
    out_h, out_w = h + top + bottom - 2, w + left + right - 2
    rows, columns = -(-out_h // tile), -(-out_w // tile)
    tiles = padded_rows(columns)
    padded = topi.nn.pad(
        data,
        (0, top, left, 0),
        (0, rows * tile + 2 - h - top, columns * tile + 2 - w - left, 0),
        name="winograd_pad",
        attrs={"schedule_rule": "None"},
    )

    def patch(o: Any, a: Any, y: Any, p: Any, c: Any) -> Any:
        if tiles > columns:  # what is computed beyond the last tile is not used
            p = tirx.min(p, columns - 1)
        row, column = o % rows * tile, p * tile + y
        return combine(transform.input, a, lambda k: padded[o // rows, row + k, column, c])

    half = te.compute(
        (n * rows, alpha, alpha, tiles, ci),
        patch,
        name="winograd_input_rows",
        attrs={"schedule_rule": "None"},
    )
    packed = te.compute(
        (n * rows, alpha, alpha, tiles, ci),
        lambda o, a, b, p, c: combine(transform.input, b, lambda k: half[o, a, k, p, c]),
        name="winograd_input",
        attrs={"schedule_rule": "None"},
    )
    k = te.reduce_axis((0, ci), "k")
    product = te.compute(
        (n * rows, alpha, alpha, tiles, co),
        lambda o, a, b, p, c: te.sum(packed[o, a, b, p, k] * weight[a, b, k, c], axis=k),
        name="winograd_product",
        attrs={"schedule_rule": "tvmtune.winograd_rows"},
    )
    back = te.compute(
        (n * rows, tile, alpha, tiles, co),
        lambda o, i, b, p, c: combine(transform.output, i, lambda r: product[o, r, b, p, c]),
        name="winograd_output_rows",
        attrs={"schedule_rule": "None"},
    )
    inverse = te.compute(
        (n * rows, tile, tile, tiles, co),
        lambda o, i, j, p, c: combine(transform.output, j, lambda r: back[o, i, r, p, c]),
        name="winograd_output",
        attrs={"schedule_rule": "None"},
    )

    def pixel(b: Any, y: Any, x: Any, c: Any) -> Any:
        return inverse[b * rows + y // tile, y % tile, x % tile, x // tile, c]

    return te.compute(
        (n, out_h, out_w, co), pixel, name="conv2d_winograd", attrs={"schedule_rule": "None"}
    )


def schedule(sch: Any, product: Any) -> list[Any]:
    """Rows of tiles in parallel; for each, products with tiles to be searched, and transforms as in
    :func:`winograd.schedule_input` and :func:`winograd.schedule_output`."""
    (back,) = sch.get_consumers(product)
    (inverse,) = sch.get_consumers(back)
    packed = sch.get_producers(product)[0]
    half = sch.get_producers(packed)[0]
    pad = sch.get_producers(half)[0]
    last = sch.get_consumers(inverse)[0]
    while sch.get_consumers(last):
        following = sch.get_consumers(last)[0]
        sch.compute_inline(last)
        last = following

    n, y, x, c = sch.get_loops(last)
    tile = int(sch.get(sch.get_loops(inverse)[1]).extent)
    rows, i = sch.split(y, [None, tile])
    columns, j = sch.split(x, [None, tile])
    channels, lanes = sch.split(c, [None, LANES])
    sch.reorder(n, rows, columns, channels, i, j, lanes)
    block = sch.fuse(n, rows)
    inner = sch.fuse(columns, channels)
    sch.vectorize(lanes)
    sch.unroll(j)
    sch.compute_at(inverse, inner, preserve_unit_loops=True)
    sch.compute_at(back, inner, preserve_unit_loops=True)
    for each in (inverse, back):
        loops = sch.get_loops(each)
        for loop in loops[-4:-2]:
            sch.unroll(loop)
        sch.vectorize(loops[-1])
    sch.compute_at(product, block, preserve_unit_loops=True)
    sch.compute_at(packed, block, preserve_unit_loops=True)
    *_, a, b, p, c = sch.get_loops(packed)
    channels, lanes = sch.split(c, [None, LANES])
    sch.reorder(p, channels, a, b, lanes)
    inner = sch.fuse(p, channels)
    sch.vectorize(lanes)
    sch.compute_at(half, inner, preserve_unit_loops=True)
    sch.compute_at(pad, inner, preserve_unit_loops=True)
    for loop in (*sch.get_loops(half)[-4:-2], a, b):
        sch.unroll(loop)
    for each in (half, pad):
        sch.vectorize(sch.get_loops(each)[-1])
    _tile(sch, product)
    sch.parallel(block)
    return [sch]


def _tile(sch: Any, product: Any) -> None:
    """Tiles in the order of TVM's rule, SSRSRS, with sums in a buffer of their own."""
    *_, a, b, p, c, k = sch.get_loops(product)
    spatial = [
        sch.split(loop, sch.sample_perfect_tile(loop, n=4, max_innermost_factor=64))
        for loop in (a, b, p, c)
    ]
    terms = sch.split(k, sch.sample_perfect_tile(k, n=2, max_innermost_factor=64))
    first, second, third, register = zip(*spatial, strict=True)
    sch.reorder(*first, *second, terms[0], *third, terms[1], *register)
    stored = sch.cache_write(product, 0, "global")
    sch.reverse_compute_at(stored, second[-1], preserve_unit_loops=True)
    sch.annotate(product, "meta_schedule.tiling_structure", "SSRSRS")
