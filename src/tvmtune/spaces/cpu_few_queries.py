"""The schedule of :mod:`tvmtune.passes.few_queries`'s kernels.

Threads share chunks of keys. Of a chunk, the scores of a key follow from one another, then come maxima,
weights and sums, and the product with the values by tiles of rows. One thread combines the chunks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmtune.cpu_features import VectorUnit
from tvmtune.operators import skipped_iterations
from tvmtune.passes import few_queries
from tvmtune.passes.blocks import blocks

if TYPE_CHECKING:
    import tvm
    from tvm.s_tir import Schedule


_OF_CHUNKS = ("weighted", "chunk_sum", "lane_sum", "weights", "chunk_max", "lane_max", "scores")
"""Stages that a chunk has, the last one first."""


def schedule(mod: tvm.IRModule, unit: VectorUnit) -> Schedule | None:
    """None for another kernel."""
    from tvm.s_tir import Schedule

    names = {
        str(each.name_hint): str(each.annotations.get("schedule_rule", ""))
        for function in mod.functions.values()
        for each in blocks(function)
    }
    if few_queries.RULE not in names.values():
        return None
    sch = Schedule(mod, error_render_level="none")
    stage = {name: sch.get_sblock(name) for name in names if name != "root"}
    lanes = int(sch.get(stage["dots"]).writes[0].source.shape[-1])
    batch, group, chunk, *_, vector, lane = sch.get_loops(stage["parts"])
    chunks = sch.fuse(batch, group, chunk)
    sch.unroll(vector)
    sch.vectorize(lane)
    for name in _OF_CHUNKS:
        sch.compute_at(stage[name], chunks, preserve_unit_loops=True)
    row, place = sch.get_loops(stage["scores"])[-2:]
    sch.reorder(place, row)
    for name in ("quarters", "dots"):
        sch.compute_at(stage[name], place, preserve_unit_loops=True)
    *_, row, lane, term = sch.get_loops(stage["dots"])
    sch.reorder(term, row, lane)
    for loop in (term, row):
        sch.unroll(loop)
    sch.vectorize(lane)
    *_, row, quarter = sch.get_loops(stage["quarters"])
    sch.unroll(row)
    sch.vectorize(quarter)
    sch.unroll(sch.get_loops(stage["scores"])[-1])
    sch.vectorize(sch.get_loops(stage["weights"])[-1])
    sums = [(stage["weighted"], _weighted(sch, stage["weighted"], unit))]
    for name in ("lane_sum", "lane_max"):
        *_, lane, part = sch.get_loops(stage[name])
        sch.reorder(part, lane)
        sch.vectorize(lane)
        sums.append((stage[name], part))
    if few_queries.VISIBLE in stage:
        sch.compute_at(stage[few_queries.VISIBLE], chunks, preserve_unit_loops=True, index=-2)
        sch.annotate(chunks, skipped_iterations.ONLY_IF, few_queries.VISIBLE)
    sch.parallel(chunks)
    _combine(sch, stage, lanes)
    sums.append((stage["dots"], term))
    for each, terms in sums:
        initial = sch.decompose_reduction(each, terms)
        sch.vectorize(sch.get_loops(initial)[-1])
    for name in ("chunk_sum", "chunk_max"):
        lane = sch.get_loops(stage[name])[-1]
        sch.unroll(lane)
        sch.decompose_reduction(stage[name], lane)
    return sch


def _weighted(sch: Schedule, block: Any, unit: VectorUnit) -> Any:
    """The product by tiles of rows and vectors; returns the loop at which its sums are initialized."""
    *_, row, column, key = sch.get_loops(block)
    rows, columns = (int(sch.get(loop).extent) for loop in (row, column))
    high, wide = _tile(rows, columns // unit.lanes, unit)
    tile, row = sch.split(row, [None, high])
    column, vector, lane = sch.split(column, [None, wide, unit.lanes])
    sch.reorder(tile, column, key, row, vector, lane)
    sch.unroll(row)
    sch.unroll(vector)
    sch.vectorize(lane)
    return key


def _tile(rows: int, vectors: int, unit: VectorUnit) -> tuple[int, int]:
    """The rows and vectors of the largest tile whose sums, values and one weight fit the registers."""
    tiles = [
        (high, wide)
        for high in range(1, rows + 1)
        for wide in range(1, vectors + 1)
        if rows % high == vectors % wide == 0 and (high + 1) * wide < unit.registers
    ]
    return max(tiles, key=lambda tile: (tile[0] * tile[1], tile[0]))


def _combine(sch: Schedule, stage: dict[str, Any], lanes: int) -> None:
    """The second step: a row at a time."""
    *_, column, term = sch.get_loops(stage["combined"])
    sch.reorder(term, column)
    sch.vectorize(sch.split(column, [None, lanes])[1])
    initial = sch.decompose_reduction(stage["combined"], term)
    sch.vectorize(sch.split(sch.get_loops(initial)[-1], [None, lanes])[1])
    column = sch.get_loops(stage["attention"])[-1]
    sch.vectorize(sch.split(column, [None, lanes])[1])
