"""The schedule of :mod:`tvmtune.passes.attention`'s kernels.

Threads share blocks of queries. A block's stages follow one another: scores by tiles of queries and
lanes of keys, maxima, weights and sums by rows, and the product with the values by tiles of queries and
columns, of which a part of the keys stays in the first-level cache.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tvmtune.cpu_features import VectorUnit
from tvmtune.passes import attention
from tvmtune.passes.blocks import blocks
from tvmtune.spaces import cpu_tiles

if TYPE_CHECKING:
    import tvm
    from tvm.s_tir import Schedule

KEYS = 256
"""Keys whose values are read for all queries of a block before the next, at most."""
ROW_STEP = 256
"""Rows of scores begin a multiple of so many values, and one tile's lanes, apart. The first-level cache
holds 8 or 12 lines whose addresses differ by multiples of 4 KiB, as those of rows of 1024 keys would,
and a tile of sums reads up to 28 rows."""
_OUTPUTS = ("attention", "normalized")
_IN_BLOCKS = ("row_sum", "lane_sum", "weights", "row_max", "lane_max", "steps", "scores")
"""Stages before the outputs', the last one first. A kernel without a mask or the like has no steps."""


def schedule(mod: tvm.IRModule, unit: VectorUnit) -> Schedule | None:
    """None for another kernel."""
    from tvm.s_tir import Schedule

    name = next(
        (
            str(each.name_hint)
            for function in mod.functions.values()
            for each in blocks(function)
            if str(each.annotations.get("schedule_rule", "")) == attention.RULE
        ),
        None,
    )
    if name is None:
        return None
    sch = Schedule(mod, error_render_level="none")
    block = sch.get_sblock(name)
    queries, size = (int(sch.get(block).annotations[name]) for name in attention.TILES)
    named = {
        str(sch.get(each).name_hint): each for each in sch.get_child_blocks(sch.get_sblock("root"))
    }
    stages = {name: named[name] for name in (*_OUTPUTS, *_IN_BLOCKS, "keys") if name in named}
    operands = [each for name, each in named.items() if name.startswith("operand")]
    lanes = int(sch.get(stages["lane_max"]).writes[0].source.shape[-1])
    *heads, rows, _ = sch.get_loops(stages["normalized"])
    outer, _ = sch.split(rows, [None, size])
    around = sch.fuse(*heads, outer)
    sch.reverse_compute_at(stages["attention"], around, preserve_unit_loops=True)
    for name in _OUTPUTS:
        _vectorize_columns(sch, stages[name], lanes)
    for each in (block, *(stages[name] for name in _IN_BLOCKS if name in stages)):
        sch.compute_at(each, around, preserve_unit_loops=True)
    for name in ("scores", "steps", "weights"):
        if name in stages:
            sch.storage_align(stages[name], 0, -3, ROW_STEP, lanes)
    sums = [_weighted(sch, block, size, unit), _scores(sch, stages["scores"], queries)]
    for name in ("lane_sum", "lane_max"):
        *_, lane, part = sch.get_loops(stages[name])
        sch.reorder(part, lane)
        sch.vectorize(lane)
        sums.append((stages[name], part))
    for name in ("weights", "steps"):
        if name in stages:
            sch.vectorize(sch.get_loops(stages[name])[-1])
    for each in (stages["keys"], *operands):
        *shared, _ = sch.get_loops(each)
        _vectorize_columns(sch, each, lanes)
        if shared:
            sch.parallel(sch.fuse(*shared))
    sch.parallel(around)
    for each, terms in sums:  # last, because TVM moves no loops beside decomposed sums
        initial = sch.decompose_reduction(each, terms)
        sch.vectorize(sch.get_loops(initial)[-1])
    for name in ("row_sum", "row_max"):
        lane = sch.get_loops(stages[name])[-1]
        sch.unroll(lane)
        sch.decompose_reduction(stages[name], lane)
    return sch


def _weighted(sch: Schedule, block: Any, size: int, unit: VectorUnit) -> tuple[Any, Any]:
    """The product by tiles; returns it and the loop at which its sums are initialized."""
    *_, row, column, key = sch.get_loops(block)
    columns, keys = (int(sch.get(loop).extent) for loop in (column, key))
    height, width = cpu_tiles.vector_tiles(size, columns // unit.lanes, unit)[0]
    part = cpu_tiles.divisor(keys, KEYS)
    tile, row = sch.split(row, [None, height])
    column, vector, lane = sch.split(column, [None, width, unit.lanes])
    outer, inner = sch.split(key, [None, part if part >= KEYS // 4 else keys])
    sch.reorder(column, outer, tile, inner, row, vector, lane)
    sch.unroll(row)
    sch.unroll(vector)
    sch.vectorize(lane)
    return block, outer


def _scores(sch: Schedule, block: Any, queries: int) -> tuple[Any, Any]:
    """As :func:`_weighted`, for the scores."""
    *_, row, part, lane, term = sch.get_loops(block)
    tile, row = sch.split(row, [None, queries])
    sch.reorder(part, tile, term, row, lane)
    sch.unroll(row)
    sch.vectorize(lane)
    return block, term


def _vectorize_columns(sch: Schedule, block: Any, lanes: int) -> None:
    column = sch.get_loops(block)[-1]
    extent = int(sch.get(column).extent)
    width = math.gcd(extent, lanes)
    sch.vectorize(sch.split(column, [None, width])[1] if width < extent else column)
