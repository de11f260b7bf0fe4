"""The schedule rule for products of tiles (AMX), and which of its decisions should be fast.

A kernel's loops become: rows and columns that threads share, the tiles within them, and the loops that
:mod:`tvmtune.operators.tile_products` turns into a call. A call computes a strip: some rows, of one or
several lines of an image, by up to four tiles of columns, with all terms of their sums. The epilogue
follows each strip.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvmtune.dot_instructions import TileInstruction
from tvmtune.operators import linear_indices, tile_products
from tvmtune.operators.tile_functions import COLUMNS, QUADS, ROWS, SUMS, TileShape
from tvmtune.operators.tile_products import MARK
from tvmtune.spaces import cpu_tiles
from tvmtune.types import product

if TYPE_CHECKING:
    from tvm.s_tir import Schedule

TILED = "meta_schedule.tiling_structure"
"""Annotation of blocks that are tiled: TVM's rules leave them alone."""
_STRUCTURE = "SSSR"
FEWEST_ROWS = 4
"""Of a tile. With fewer, dot-product instructions are as fast: an instruction takes as long for ten."""
_CYCLES = 10
"""For an instruction with so few rows; one cycle for each further row. Measured on a Xeon (Granite
Rapids), as are the next two."""
_LOAD, _FAR_LOAD = 1.0, 1.3
"""Cycles to load a row of a tile from the first-level cache, and from the second-level one."""
_NEAR = 24 * 1024
"""Bytes of a strip's weights that stay in the first-level cache."""
_STRIP = 300
"""Cycles until the last sums of a strip are stored, and the first operands of the next one loaded:
an estimate. The stores of 22x32 sums took 240 cycles by themselves."""
_BEFORE = -1
"""Decision of SampleComputeLocation."""
STRIP = 64
"""Rows of a strip, at most."""


def rule(instruction: TileInstruction) -> Any:
    """A MetaSchedule rule that replaces a product by one design, for weights packed as the instruction
    reads them."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.schedule_rule import PyScheduleRule

    @derived_object
    class Tiles(PyScheduleRule):
        def _initialize_with_tune_context(self, context: Any) -> None:
            pass

        def apply(self, sch: Schedule, block: Any) -> list[Schedule]:
            if not _applies(sch, block, instruction):
                return [sch]
            tiled = sch.copy()
            try:
                _tile(tiled, block)
            except (
                Exception
            ):  # TVM raises several unrelated types for an epilogue that it cannot move
                return [sch]
            return [tiled]

        def clone(self) -> Any:
            return rule(instruction)

    return Tiles()


def _applies(sch: Schedule, block: Any, instruction: TileInstruction) -> bool:
    computed = sch.get(block)
    if not cpu_tiles.reads_blocks(computed, COLUMNS, instruction.terms):
        return False
    if TILED in computed.annotations or len(sch.get_consumers(block)) != 1:
        return False  # without an epilogue, TVM would make one loop of the strips and their rows
    spatial = [int(v.dom.extent) for v in computed.iter_vars if _is_spatial(v)]
    terms = [int(v.dom.extent) for v in computed.iter_vars if not _is_spatial(v)]
    row = _row(spatial)
    return (
        len(terms) > 1
        and row is not None
        and cpu_tiles.divisor(spatial[row], ROWS) >= FEWEST_ROWS
        and cpu_tiles.divisor(_quads(computed), QUADS) >= instruction.fewest
        and not _has_blocked_outputs(computed)
        and tile_products.instruction(computed.body) is instruction
        and _reads_rows(computed)
    )


def _has_blocked_outputs(block: Any) -> bool:
    """Whether rows follow an axis of columns, which chooses among weights but not among data."""
    data = [axis.min for axis in block.reads[0].region]
    outer = [v.var for v in block.iter_vars if _is_spatial(v)][:-1]
    columns = cpu_tiles.tensor_columns(block)[:-1]
    return any(
        chooses and not any(cpu_tiles.uses(index, axis) for index in data)
        for axis, chooses in zip(outer, columns, strict=True)
    )


def _reads_rows(block: Any) -> bool:
    """Whether data are read at steps that are the same for all sums: not those of several groups, nor
    through a reshape."""
    from tvm import tirx
    from tvm_ffi import structural_walk

    divisions: list[Any] = []
    kinds = (tirx.FloorDiv, tirx.FloorMod)
    for axis in block.reads[0].region:
        structural_walk(axis.min, tuple((kind, divisions.append) for kind in kinds))
    return not divisions


def _quads(block: Any) -> int:
    """Groups of terms that follow each other in memory: those of an element of the kernel, or of a row
    of it if that fills tiles better, as where an image has few channels."""
    *kernel, quads, terms = (v for v in block.iter_vars if not _is_spatial(v))
    own = int(quads.dom.extent)
    if not kernel:
        return own
    row = own * int(kernel[-1].dom.extent)
    data = block.reads[0]
    neighbors = [axis.min for axis in data.region[-2:]]
    is_row = (
        len(neighbors) == 2
        and int(data.source.shape[-1]) == own * int(terms.dom.extent)
        and (found := linear_indices.linear(neighbors[0], {})) is not None
        and found.get(kernel[-1].var) == 1
    )
    fuller = cpu_tiles.divisor(row, QUADS) > cpu_tiles.divisor(own, QUADS)
    return row if is_row and fuller else own


def _is_spatial(variable: Any) -> bool:
    from tvm import tirx

    return bool(variable.iter_type == tirx.IterVar.DataPar)


def _row(spatial: Sequence[int]) -> int | None:
    """Which of the spatial axes has the rows: the last before the columns with several steps."""
    return max((i for i, extent in enumerate(spatial[:-1]) if extent > 1), default=None)


def _line(block: Any, row: int) -> int | None:
    """Which of the spatial axes has the lines that may be in the same strip: that before the rows,
    unless it chooses among weights, as that of a batch may."""
    return row - 1 if row and not cpu_tiles.tensor_columns(block)[row - 1] else None


def _tile(sch: Schedule, block: Any) -> None:
    loops = sch.get_loops(block)
    count = sum(map(_is_spatial, sch.get(block).iter_vars))
    row = _row([int(sch.get(loop).extent) for loop in loops[:count]])
    assert row is not None
    line = _line(sch.get(block), row)
    *outer, column = loops[:count]
    *kernel, quads, terms = loops[count:]
    together = _quads(sch.get(block))
    if together > int(sch.get(quads).extent):
        quads = sch.fuse(kernel.pop(), quads)
    shared, inner, strip = [], [], []
    for at, loop in enumerate(outer):
        if at == row:
            strips, rows = sch.split(loop, sch.sample_perfect_tile(loop, 2, STRIP))
            inner.append(strips)
        elif at == line:
            first, second, lines = sch.split(loop, sch.sample_perfect_tile(loop, 3, SUMS))
            shared.append(first)
            inner.append(second)
            strip.append(lines)
        else:
            first, second = sch.split(loop, sch.sample_perfect_tile(loop, 2, 1 << 20))
            shared.append(first)
            inner.append(second)
    tiles, lanes = sch.split(column, [None, COLUMNS])
    first, second, wide = sch.split(tiles, sch.sample_perfect_tile(tiles, 3, SUMS))
    whole, quads = sch.split(quads, [None, cpu_tiles.divisor(together, QUADS)])
    strip += [rows, wide, lanes]
    sch.reorder(*shared, first, *inner, second, *strip, *kernel, whole, quads, terms)
    sch.annotate(strip[0], MARK, 1)
    sch.annotate(block, TILED, _STRUCTURE)
    for operand in sch.get_producers(block):
        if sch.get(operand).writes[0].source.same_as(sch.get(block).reads[-1].source):
            # Terms that it packs are far apart: LLVM makes vectors of the loop around them.
            sch.unroll(sch.get_loops(operand)[-1])
    (epilogue,) = sch.get_consumers(block)
    sch.reverse_compute_at(epilogue, second, preserve_unit_loops=True)


def check() -> Any:
    """A post-processor that rejects candidates in which anything else is computed within a strip: they
    would be loops without instructions."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.postproc import PyPostproc

    @derived_object
    class Strips(PyPostproc):
        def _initialize_with_tune_context(self, context: Any) -> None:
            pass

        def apply(self, sch: Schedule) -> bool:
            block = _strips(sch)
            if block is None:
                return True
            marked = [loop for loop in sch.get_loops(block) if MARK in sch.get(loop).annotations]
            return (
                len(marked) == 1
                and _fits(sch, block, marked[0])
                and len(sch.get_child_blocks(marked[0])) == 1
                and tile_products.instruction(sch.get(block).body) is not None
                and _reads_rows(sch.get(block))
            )

        def clone(self) -> Any:
            return check()

    return Strips()


def _fits(sch: Schedule, block: Any, marked: Any) -> bool:
    """Whether the registers hold the sums of a strip."""
    loops = sch.get_loops(block)
    first = next(i for i, loop in enumerate(loops) if sch.get(loop).same_as(sch.get(marked)))
    extents = [int(sch.get(loop).extent) for loop in loops[first:]]
    lanes = extents.index(COLUMNS, 2)
    *lines, rows, wide = extents[:lanes]
    return TileShape.of(rows, wide * COLUMNS, 1, product(lines)) is not None


def keeping_layouts(step: Any) -> Any:
    """A post-processor that leaves kernels with strips alone, and otherwise does what ``step`` does:
    for TVM's, which would re-order weights that are packed already."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.postproc import PyPostproc

    @derived_object
    class Kept(PyPostproc):
        def _initialize_with_tune_context(self, context: Any) -> None:
            step._initialize_with_tune_context(context)

        def apply(self, sch: Schedule) -> bool:
            return _strips(sch) is not None or bool(step.apply(sch))

        def clone(self) -> Any:
            return keeping_layouts(step.clone())

    return Kept()


def _strips(sch: Schedule) -> Any | None:
    """The block that the rule has tiled."""
    for child in sch.get_child_blocks(sch.get_sblock("root")):
        if str(sch.get(child).annotations.get(TILED, "")) == _STRUCTURE:
            return child
    return None


def block_of(design: Schedule) -> Any | None:
    """The block that the rule has tiled; None in other designs."""
    from tvm.s_tir import Schedule

    if not any(MARK in str(inst.attrs) for inst in design.trace.insts):
        return None
    sch = Schedule(design.mod)  # so that the questions do not become part of the design's trace
    block = _strips(sch)
    return None if block is None else sch.get(block)


@dataclass(frozen=True)
class Decisions:
    """Of the rule for a block."""

    parts: list[list[int]]
    """Of each loop that it splits, in its order."""
    padding: int
    """Where padding is computed: before the kernel, or after so many loops less one."""


def decisions(block: Any) -> Iterator[Decisions]:
    """The best ones first."""
    spatial = [int(v.dom.extent) for v in block.iter_vars if _is_spatial(v)]
    *kernel, quads, _ = (int(v.dom.extent) for v in block.iter_vars if not _is_spatial(v))
    terms = product(kernel) * quads
    row = _row(spatial)
    assert row is not None
    *outer, columns = spatial
    rows, tiles = outer[row], columns // COLUMNS
    inner = cpu_tiles.divisor(_quads(block), QUADS)
    steps = terms // inner
    weights = 4 * columns * terms
    line = _line(block, row)
    above = 1 if line is None else outer[line]
    strips = [
        (_cycles(shape, lines * strip, steps), lines, strip, wide)
        for lines in cpu_tiles.divisors(above, SUMS)
        for strip in cpu_tiles.divisors(rows, STRIP)
        for wide in cpu_tiles.divisors(tiles, SUMS)
        if (shape := TileShape.of(strip, wide * COLUMNS, inner, lines)) is not None
    ]
    others = product(outer) // rows
    # What comes first is shared by the threads.
    by_columns = weights > cpu_tiles.CACHED or others < cpu_tiles.FEWEST_PARTS
    # A thread that computes some columns of all rows pads these for itself. Not for products, whose
    # sums are short, nor where other rows are padded by several threads.
    alone = by_columns and product(kernel) > 1
    for _, lines, strip, wide in sorted(strips):
        parts = [[1, n] if by_columns else [n, 1] for n in outer]
        if line is not None:
            more = above // lines
            parts[line] = [1, more, lines] if by_columns else [more, 1, lines]
        parts[row] = [rows // strip, strip]
        rest = tiles // wide
        parts.append([rest, 1, wide] if by_columns else [1, rest, wide])
        yield Decisions(parts, len(outer) - 1 if alone else _BEFORE)


def _cycles(shape: TileShape, rows: int, steps: int) -> float:
    """Per row and tile of columns of a strip with so many rows, for sums of ``steps`` instructions
    each."""
    high, height, wide, quads = shape.high, shape.rows, shape.wide, shape.quads
    near = _LOAD if 64 * quads * steps * wide <= _NEAR else _FAR_LOAD
    products = high * wide * max(_CYCLES, height)
    loads = _LOAD * high * height + near * wide * quads
    return steps * max(products, loads) / (high * wide * height) + _STRIP / (rows * wide)
