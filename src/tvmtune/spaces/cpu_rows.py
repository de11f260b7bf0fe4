"""Default schedules for kernels without products on CPUs: elementwise chains, softmax, normalizations,
reductions.

Each thread computes some rows of the output, and all stages of a row follow one another while it is in
the cache. TVM's rules schedule stages by themselves and vectorize loops fused across rows, which makes
gathers of loads where a row is no multiple of the vector.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tvmtune.cpu_features import VectorUnit
from tvmtune.operators.cpu_pipeline import PARTITIONED
from tvmtune.operators.linear_indices import linear
from tvmtune.spaces.cpu_tiles import divisor
from tvmtune.types import product

if TYPE_CHECKING:
    import tvm
    from tvm.s_tir import Schedule

VECTORS = 4
"""Vectors per step of a loop over a row, for independent sums and fewer jumps."""
LINE = 16
"""Elements of a line of the cache, of 64 bytes, if they have 32 bits."""
SHORT = 4
"""Elements in a row below which a transposition is computed in the order of its output."""
SMALLEST = 8
"""Elements of a tile of a transposition, at least; two prime extents have tiles of one."""
SERIAL = 4096
"""Values below which threads cost more than they bring."""


def schedule(mod: tvm.IRModule, unit: VectorUnit, cores: int = 1) -> Schedule | None:
    """The rows of the kernel's output in parallel; None for a kernel that has no such rows.

    Raises whatever TVM raises if a stage cannot be moved.
    """
    from tvm.s_tir import Schedule

    sch = Schedule(mod, error_render_level="none")
    outputs = _inline(sch)
    stages = _stages(sch)
    sums = [stage for stage in stages if _sums(sch, stage)]
    if any(_dtype(sch, stage) == "bfloat16" for stage in sums):
        return None  # TVM does not compile vectors of such sums
    if not sums:
        for stage in outputs:
            _elementwise(sch, stage, unit, cores)
        return sch
    if len(outputs) > 1:
        return None
    output = outputs[0]
    extents = _extents(sch, output)[: _spatial(sch, output)]
    spatial = [_extents(sch, stage)[: _spatial(sch, stage)] for stage in sums]
    terms = [product(_extents(sch, stage)[_spatial(sch, stage) :]) for stage in sums]
    if len(sums) == 1 and len(stages) <= 2 and spatial[0] == extents:
        if not _row_by_row(sch, stages, len(extents)):
            return None
        if not _contiguous_terms(sch, sums[0]):
            _columns(sch, sums[0], output, unit, cores)
        elif len(sch.get(sums[0]).writes) > 1 or terms[0] % (2 * unit.lanes):
            return None  # values with their positions; no whole vectors
        elif product(extents) >= 2 * cores:
            _rows(sch, output, len(extents), unit)
        else:
            _parts(sch, sums[0], unit, cores)
        return sch
    rows = min(len(s) for s in spatial)
    if _sums(sch, output) or not 0 < rows < len(extents) or product(extents[:rows]) == 1:
        return None
    if any(_extents(sch, stage)[:rows] != extents[:rows] for stage in stages):
        return None
    if not _row_by_row(sch, stages, rows):
        return None
    if all(n % unit.lanes == 0 or n < 2 * unit.lanes for n in terms):
        _rows(sch, output, rows, unit)
    else:
        _separate(sch, rows, unit)
    return sch


def _row_by_row(sch: Schedule, stages: list[Any], rows: int) -> bool:
    """Whether each stage reads only the row that it writes of what other stages wrote; ``rows`` is how
    many axes count rows. Equal extents do not tell: a softmax of (n, c, h, w) over c with h = c."""
    written = [sch.get(stage).writes[0].source for stage in stages]
    for stage in stages:
        block = sch.get(stage)
        for read in block.reads:
            if not any(read.source.same_as(buffer) for buffer in written):
                continue
            for variable, axis in zip(block.iter_vars[:rows], read.region[:rows], strict=False):
                if int(variable.dom.extent) > 1 and not axis.min.same_as(variable.var):
                    return False
    return True


def _stages(sch: Schedule) -> list[Any]:
    return list(sch.get_child_blocks(sch.get_sblock("root")))


def _inline(sch: Schedule) -> list[Any]:
    """Inline elementwise stages into their consumer, or into several if none of them sums, and return
    the outputs' stages."""
    outputs = []
    for block in _stages(sch):
        consumers = sch.get_consumers(block)
        if not consumers:
            outputs.append(block)
        elif not _sums(sch, block) and (
            len(consumers) == 1 or not any(_sums(sch, consumer) for consumer in consumers)
        ):
            sch.compute_inline(block)
    return outputs


def _same(sch: Schedule, one: Any, other: Any) -> bool:
    return sch.get(one).name_hint == sch.get(other).name_hint


def _sums(sch: Schedule, block: Any) -> bool:
    from tvm import tirx

    return any(v.iter_type != tirx.IterVar.DataPar for v in sch.get(block).iter_vars)


def _dtype(sch: Schedule, block: Any) -> str:
    return str(sch.get(block).writes[0].source.dtype)


def _extents(sch: Schedule, block: Any) -> list[int]:
    return [int(sch.get(loop).extent) for loop in sch.get_loops(block)]


def _width(extent: int, unit: VectorUnit) -> int:
    """Lanes for a loop: the largest power of two, up to :data:`VECTORS` vectors, that divides it."""
    width = VECTORS * unit.lanes
    while extent % width:
        width //= 2
    return width


def _vectorize(sch: Schedule, loop: Any, unit: VectorUnit, seams: Sequence[int] = ()) -> None:
    """In whole vectors if they fit; LLVM vectorizes other loops, with a remainder.

    Where :func:`_seams` are no multiple of a vector, vectors that contain one are computed value by
    value.
    """
    extent = int(sch.get(loop).extent)
    width = _width(math.gcd(extent, *seams), unit)
    if width < unit.lanes:
        width = min(_width(extent, unit), unit.lanes)
    if 2 * width >= unit.lanes:
        if width == extent:
            sch.vectorize(loop)
            return
        loop, lanes = sch.split(loop, [None, width])
        sch.vectorize(lanes)
    if seams:
        sch.annotate(loop, PARTITIONED, True)


def _seams(sch: Schedule, block: Any) -> list[int]:
    """Where along the last axis a condition of the block changes: it reads another part of a
    concatenation from there on, or padding begins or ends. Vectors of a condition on their lanes are
    loaded value by value.

    Empty if a condition depends on the last axis in another way: TVM would split the loop there, too,
    and its parts go beyond the loop's ends where a bound depends on another variable.
    """
    from tvm import tirx
    from tvm_ffi import structural_walk

    stage = sch.get(block)
    variable = stage.iter_vars[-1].var
    extent = int(stage.iter_vars[-1].dom.extent)
    comparisons: list[Any] = []
    for kind in (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE):
        structural_walk(stage.body, (kind, comparisons.append))
    found = {
        _seam(each, variable)
        for each in comparisons
        if any(_depends(side, variable) for side in (each.a, each.b))
    }
    if any(seam is None or not 0 < seam < extent for seam in found):
        return []
    return sorted(seam for seam in found if seam is not None)


def _seam(comparison: Any, variable: Any) -> int | None:
    """The value of the variable from which on the comparison has another result; None unless the other
    side is a constant."""
    from tvm import tirx

    one, other = (linear(each, {}) for each in (comparison.a, comparison.b))
    if one is None or other is None:
        return None
    sides = {key: one.get(key, 0) - other.get(key, 0) for key in {*one, *other, None}}
    factor = sides.get(variable, 0)
    if len(sides) != 2 or abs(factor) != 1:
        return None
    if not isinstance(comparison, tirx.LT | tirx.LE | tirx.GT | tirx.GE):
        return None
    is_after = isinstance(comparison, (tirx.LE, tirx.GT) if factor > 0 else (tirx.GE, tirx.LT))
    return -factor * sides[None] + is_after


def _depends(expression: Any, variable: Any) -> bool:
    """Whether the expression is the variable, or arithmetic with it. TVM finds no bounds of what a call
    returns, such as a choice, or what is loaded."""
    import tvm

    if not isinstance(expression, tvm.ir.Expr) or isinstance(expression, tvm.ir.TensorLoad):
        return False
    operands = [getattr(expression, name, None) for name in ("a", "b", "value")]
    return bool(expression.same_as(variable)) or any(_depends(o, variable) for o in operands)


def _elementwise(sch: Schedule, block: Any, unit: VectorUnit, cores: int) -> None:
    loops = sch.get_loops(block)
    size = product(_extents(sch, block))
    if not loops:
        return
    if (tile := _transposed_tile(sch, block)) is not None:
        rows = _tile_transposed(sch, loops, *tile)
        if size >= SERIAL:
            sch.parallel(rows)
        return
    *outer, last = loops
    extent = int(sch.get(last).extent)
    count = product(_extents(sch, block)[:-1])
    seams: list[int] = []
    if count == 1:
        rows, last = sch.split(last, [None, _width(extent, unit)])
    elif count >= 2 * cores:
        rows = _fuse(sch, outer)
        seams = _seams(sch, block)
    else:
        # Few long rows: threads share each.
        parts = divisor(extent // _width(extent, unit), -(-4 * cores // count))
        part, last = sch.split(last, [parts, None])
        rows = _fuse(sch, [*outer, part])
    _vectorize(sch, last, unit, seams)
    if size >= SERIAL:
        sch.parallel(rows)


def _transposed_tile(sch: Schedule, block: Any) -> tuple[int, int, int] | None:
    """The axis of the output that :func:`_read_across` finds, and how many elements of it, and of all
    axes after it, make a tile: no more than a line of the cache has. None if that is too little."""
    column = _read_across(sch, block)
    if column is None:
        return None
    extents = _extents(sch, block)
    sides = extents[column], product(extents[column + 1 :])
    down, across = (divisor(side, LINE) for side in sides)
    return (column, down, across) if min(sides) >= SHORT and down * across >= SMALLEST else None


def _read_across(sch: Schedule, block: Any) -> int | None:
    """The axis of the output, not its last, whose neighbors are neighbors in memory where the block
    reads most, as in a transposition; None if there is none.

    Not found: what is read through a reshape, or at a distance, as behind a concatenation.
    """
    stage = sch.get(block)
    variables = [v.var for v in stage.iter_vars]
    sizes = [product([int(n) for n in read.source.shape]) for read in stage.reads]
    for read, size in zip(stage.reads, sizes, strict=True):
        if size < max(sizes) or not len(read.region):
            continue
        *others, last = (axis.min for axis in read.region)
        column = next((n for n, v in enumerate(variables[:-1]) if last.same_as(v)), None)
        # Else the same value is read for the whole row.
        if column is not None and any(
            o.same_as(v) for o in others for v in variables[column + 1 :]
        ):
            return column
    return None


def _tile_transposed(sch: Schedule, loops: list[Any], column: int, down: int, across: int) -> Any:
    """The loop over tiles of ``down`` elements of an axis and ``across`` of those after it: element by
    element, each line of the cache would be loaded again for every element of it."""
    last = _fuse(sch, loops[column + 1 :])
    outer, inner = sch.split(loops[column], [None, down])
    tile, lanes = sch.split(last, [None, across])
    sch.reorder(*loops[:column], tile, outer, inner, lanes)
    if across & (across - 1) == 0:
        sch.vectorize(lanes)
    return _fuse(sch, [*loops[:column], tile, outer])


def _columns(sch: Schedule, total: Any, output: Any, unit: VectorUnit, cores: int) -> None:
    """Sums over outer axes, such as pooling: neighboring outputs in the lanes of vectors."""
    spatial = _spatial(sch, total)
    extents = _extents(sch, total)
    width = _width(extents[spatial - 1], unit)
    parts = extents[spatial] if len(extents) > spatial + 1 else divisor(extents[spatial], 4 * cores)
    shared = product(extents[:spatial]) // width < 2 * cores <= parts
    if shared:
        # Few outputs of many terms: threads share the first axis of terms, or parts of the only one.
        loop = sch.get_loops(total)[spatial]
        if len(extents) == spatial + 1:
            loop, _ = sch.split(loop, [parts, None])
        partial = sch.rfactor(loop, 0)
        _sum_columns(sch, partial, spatial - 1, 1, width)
    if _same(sch, total, output):
        _sum_columns(sch, total, spatial - 1, 0, width)
        return
    *outer, last = sch.get_loops(output)
    tile, lanes = sch.split(last, [None, width])
    tile = _fuse(sch, [*outer, tile])
    sch.vectorize(lanes)
    sch.parallel(tile)
    sch.compute_at(total, tile, preserve_unit_loops=False)
    if width > 1:
        _, *loops = sch.get_loops(total)
        lanes, *terms = reversed(loops) if shared else loops
        sch.reorder(*terms, lanes)
        sch.vectorize(lanes)
        sch.decompose_reduction(total, terms[0])


def _sum_columns(sch: Schedule, block: Any, column: int, more: int, width: int) -> None:
    """One tile of ``width`` sums at a time along the loop at position ``column``, which is followed by
    ``more`` loops over outputs and the loops over terms."""
    loops = sch.get_loops(block)
    outer = [*loops[column + 1 : column + 1 + more], *loops[:column]]
    terms = loops[column + 1 + more :]
    tile, lanes = sch.split(loops[column], [None, width])
    sch.reorder(*outer, tile, *terms, lanes)
    sch.parallel(_fuse(sch, [*outer, tile]))
    sch.vectorize(lanes)
    sch.decompose_reduction(block, terms[0])


def _rows(sch: Schedule, output: Any, rows: int, unit: VectorUnit) -> None:
    """All stages of a row of the output one after another."""
    for stage in _stages(sch):
        if _sums(sch, stage):
            _sum_in_lanes(sch, stage, unit)
    row = _fuse(sch, sch.get_loops(output)[:rows])
    if not _sums(sch, output):
        _vectorize_inner(sch, output, unit)
    _compute_at(sch, [s for s in _stages(sch) if not _same(sch, s, output)], row, unit)


def _parts(sch: Schedule, total: Any, unit: VectorUnit, cores: int) -> None:
    """Sum parts of the only row, or of few, in parallel."""
    terms = _fuse(sch, sch.get_loops(total)[_spatial(sch, total) :])
    vectors = int(sch.get(terms).extent) // (2 * unit.lanes)
    after = _stages(sch)
    part = sch.rfactor(sch.split(terms, [divisor(vectors, 2 * cores), None])[0], 0)
    _sum_in_lanes(sch, part, unit)
    others = [part, *after]
    stages = [s for s in _stages(sch) if not any(_same(sch, s, other) for other in others)]
    row = _fuse(sch, sch.get_loops(part)[: _spatial(sch, part)])
    _compute_at(sch, stages, row, unit)


def _compute_at(sch: Schedule, stages: list[Any], row: Any, unit: VectorUnit) -> None:
    """Compute the stages for each iteration of ``row``, which becomes parallel."""
    for stage in reversed(stages):
        sch.compute_at(stage, row, preserve_unit_loops=False)
        if not _sums(sch, stage):
            _vectorize_inner(sch, stage, unit)
    partial = []
    for stage in sch.get_child_blocks(row):
        loops = sch.get_loops(stage)
        if _sums(sch, stage) and len(loops) == 3:  # row, lanes, terms
            sch.reorder(loops[2], loops[1])
            sch.vectorize(loops[1])
            partial.append((stage, loops[2]))
    sch.parallel(row)
    for stage, terms in partial:  # last, because TVM moves no loops beside decomposed sums
        sch.decompose_reduction(stage, terms)


def _separate(sch: Schedule, rows: int, unit: VectorUnit) -> None:
    """Each stage for all rows: TVM loses the bounds of split loops when it moves a stage."""
    for stage in _stages(sch):
        loops = sch.get_loops(stage)
        if _sums(sch, stage):
            terms = _fuse(sch, loops[_spatial(sch, stage) :])
            if int(sch.get(terms).extent) >= 2 * unit.lanes:
                lanes = sch.split(terms, [None, unit.lanes])[1]
                partial = sch.rfactor(lanes, _spatial(sch, stage))
                inner = sch.get_loops(partial)
                sch.parallel(_fuse(sch, inner[:rows]))
                sch.vectorize(inner[-1])
                sch.decompose_reduction(partial, inner[-2])
            loops = sch.get_loops(stage)
        sch.parallel(_fuse(sch, loops[:rows]))
        if not _sums(sch, stage):
            _vectorize_inner(sch, stage, unit)


def _fuse(sch: Schedule, loops: list[Any]) -> Any:
    return sch.fuse(*loops) if len(loops) > 1 else loops[0]


def _spatial(sch: Schedule, block: Any) -> int:
    from tvm import tirx

    return sum(v.iter_type == tirx.IterVar.DataPar for v in sch.get(block).iter_vars)


def _vectorize_inner(sch: Schedule, block: Any, unit: VectorUnit) -> None:
    """Vectorize what is within the loop over rows."""
    inner = sch.get_loops(block)[1:]
    if inner and not _conditional(sch, block):
        _vectorize(sch, _fuse(sch, inner), unit)


def _conditional(sch: Schedule, block: Any) -> bool:
    """Whether it pads: TVM would load its vectors value by value, LLVM uses masks."""
    import tvm

    value = getattr(sch.get(block).body, "value", None)
    return isinstance(value, tvm.ir.Call) and value.op.same_as(tvm.ir.Op.get("prim.if_then_else"))


def _sum_in_lanes(sch: Schedule, stage: Any, unit: VectorUnit) -> None:
    """Sum in the lanes of some vectors, then over the lanes, a quarter of them at a time."""
    loop = _fuse(sch, sch.get_loops(stage)[_spatial(sch, stage) :])
    extent = int(sch.get(loop).extent)
    if extent < 2 * unit.lanes:
        return
    width = _width(extent, unit)
    if width == extent:
        width //= 2
    sch.rfactor(sch.split(loop, [None, width])[1], 0)
    while width > 4:
        width //= 4
        loop = sch.get_loops(stage)[-1]
        sch.rfactor(sch.split(loop, [None, width])[1], 0)


def _contiguous_terms(sch: Schedule, stage: Any) -> bool:
    """Whether neighboring terms of the sum are neighbors in memory."""
    from tvm import tirx

    block = sch.get(stage)
    terms = [v.var for v in block.iter_vars if v.iter_type != tirx.IterVar.DataPar]
    return any(read.region[-1].min.same_as(v) for read in block.reads for v in terms)
