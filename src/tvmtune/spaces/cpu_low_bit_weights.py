"""The schedule of :mod:`tvmtune.passes.low_bit_weights`'s kernels.

Threads share tiles of columns. A tile's sums of a block stay in registers, are scaled, and are added to
those of the blocks before; whatever is fused into the kernel follows at the end of a tile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmtune.cpu_features import VectorUnit
from tvmtune.passes import low_bit_weights
from tvmtune.passes.blocks import blocks

if TYPE_CHECKING:
    import tvm
    from tvm.s_tir import Schedule

UNROLLED = 4
"""Bytes of a column in an iteration of the innermost loop."""


def schedule(mod: tvm.IRModule, unit: VectorUnit) -> Schedule | None:
    """None for another kernel."""
    from tvm.s_tir import Schedule

    rules = [
        str(each.annotations.get("schedule_rule", ""))
        for function in mod.functions.values()
        for each in blocks(function)
    ]
    if low_bit_weights.RULE not in rules:
        return None
    sch = Schedule(mod, error_render_level="none")
    children = sch.get_child_blocks(sch.get_sblock("root"))
    named = {str(sch.get(each).name_hint): each for each in children}
    ours = ("totals", "sums", "products")
    *before, last = [each for name, each in named.items() if name not in ours]
    for each in before:
        sch.compute_inline(each)
    columns = int(sch.get(named["products"]).writes[0].source.shape[-1])
    *outer, column = sch.get_loops(last)
    tile, lane = sch.split(column, [None, columns])
    sch.reorder(tile, *outer, lane)
    _vectorize(sch, lane, unit.lanes)
    sch.compute_at(named["products"], tile, preserve_unit_loops=True)
    *_, row, lane, block = sch.get_loops(named["products"])
    vector, lane = sch.split(lane, [None, unit.lanes])
    sch.reorder(block, row, vector, lane)
    _inner(sch, row, vector, lane)
    sch.compute_at(named["sums"], block, preserve_unit_loops=True)
    *_, row, lane, term = sch.get_loops(named["sums"])
    vector, lane = sch.split(lane, [None, unit.lanes])
    outer_term, inner_term = sch.split(term, [None, _unrolled(int(sch.get(term).extent))])
    sch.reorder(outer_term, inner_term, row, vector, lane)
    sch.unroll(inner_term)
    _inner(sch, row, vector, lane)
    sch.parallel(tile)
    for name, at in (("sums", outer_term), ("products", block)):
        initial = sch.decompose_reduction(named[name], at)
        *_, row, vector, lane = sch.get_loops(initial)
        _inner(sch, row, vector, lane)
    return sch


def _unrolled(extent: int) -> int:
    return max(n for n in range(1, UNROLLED + 1) if extent % n == 0)


def _vectorize(sch: Schedule, loop: Any, lanes: int) -> None:
    sch.vectorize(sch.split(loop, [None, lanes])[1])


def _inner(sch: Schedule, row: Any, vector: Any, lane: Any) -> None:
    """Rows and vectors of a tile, side by side in registers."""
    sch.unroll(row)
    sch.unroll(vector)
    sch.vectorize(lane)
