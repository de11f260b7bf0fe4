"""Functions in LLVM IR that multiply matrices with Intel's AMX.

AMX has eight registers, each a tile of up to 16 rows of 64 bytes. An instruction multiplies a tile of
data, rows of terms, by a tile of weights in the blocks of
:func:`tvmtune.passes.packed_products.blocked_weights`, and adds the products to a tile of sums: see
Intel, "Architecture Instruction Set Extensions Programming Reference", chapter 3.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from tvmtune.dot_instructions import TILES, TileInstruction
from tvmtune.machine import amx
from tvmtune.operators import prefetch

ROWS = 16
"""Of a tile, at most."""
COLUMNS = 16
"""Of a tile of sums or weights: sums of 32 bits."""
QUADS = 16
"""32-bit groups of terms in a row of a tile of data, at most."""
SUMS = 4
"""Tiles of sums, at most: with more, no registers are left to load the next operands early."""
LOOPS = 3
"""Over terms, around the instructions."""
_REGISTERS = 8
_REGISTER_BYTES = 64
_PREFIX = "tvmtune_tiles_"
_START = "_start"
END = f"{_PREFIX}end"
"""Name of the function that releases the registers."""
_NAME = re.compile(
    _PREFIX + rf"({'|'.join(kind.name for kind in TILES)})_(\d+)x(\d+)_(\d+)_(\d+)_(\d+)({_START})?"
)


@dataclass(frozen=True)
class TileShape:
    """What a function computes at a time: ``high`` tiles with so many ``rows``, one below the other,
    by ``wide`` tiles of 16 columns; ``quads`` groups of terms per step, an instruction per tile."""

    rows: int
    high: int
    wide: int
    quads: int
    ahead: int = 0
    """Cache lines that each step prefetches."""

    @classmethod
    def of(cls, rows: int, columns: int, quads: int, lines: int = 1) -> TileShape | None:
        """The best one for so many rows and columns in all, in each of some lines of an image; None if
        the registers do not hold it."""
        wide = columns // COLUMNS
        if columns % COLUMNS or not 0 < wide <= SUMS or not 0 < quads <= QUADS:
            return None
        height = max(n for n in range(1, ROWS + 1) if rows % n == 0)
        if lines > 1:
            fits = height == rows and lines * wide <= SUMS
            return cls(height, lines, wide, quads) if fits else None
        high = max(n for n in range(1, SUMS // wide + 1) if rows // height % n == 0)
        return cls(height, high, wide, quads)

    def name(self, kind: TileInstruction) -> str:
        """Of the function that computes sums."""
        return f"{_PREFIX}{kind.name}_{self.rows}x{self.high}_{self.wide}_{self.quads}_{self.ahead}"

    def start_name(self, kind: TileInstruction) -> str:
        """Of the function that sets up the registers for it."""
        return replace(self, ahead=0).name(kind) + _START


def definitions(called: Collection[str]) -> list[str]:
    """In LLVM IR, of the functions here among those whose names are ``called``.

    A thread sets up the registers before it computes sums, and releases them afterwards. These two
    functions have no arguments. A function that computes sums has pointers to the first and the last
    sum, to data, to weights, and to what it prefetches; then, as 64-bit integers, how often the tiles
    are repeated downwards; bytes of sums and of data between these repetitions, between tiles one below
    the other, and between rows; bytes between tiles of weights; for each of :data:`LOOPS` loops, the
    outermost first, its iterations, and by how many bytes each moves data and weights. Sums are stored,
    not added to. The result is 0.
    """
    kinds = {kind.name: kind for kind in TILES}
    matches = [match for name in sorted(called) if (match := _NAME.fullmatch(name))]
    texts = []
    for kind, *numbers, start in (match.groups() for match in matches):
        function = _Function(kinds[kind], TileShape(*map(int, numbers)))
        texts.append(function.start() if start else function.definition())
    return [*_DECLARATIONS, _END, *texts] if texts else []


def is_start(name: str) -> bool:
    """Whether a function of this name sets up registers."""
    found = _NAME.fullmatch(name)
    return found is not None and found.groups()[-1] is not None


_DECLARATIONS = (
    "declare i64 @syscall(i64, ...)",
    "declare void @llvm.x86.ldtilecfg(ptr)",
    "declare void @llvm.x86.tilerelease()",
    "declare void @llvm.x86.tilezero(i8 immarg)",
    "declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)",
    "declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)",
    "declare void @llvm.prefetch.p0(ptr, i32 immarg, i32 immarg, i32 immarg)",
    *(f"declare void @{kind.intrinsic}(i8 immarg, i8 immarg, i8 immarg)" for kind in TILES),
)

_END = f"""define linkonce_odr i32 @{END}() nounwind "target-features"="+amx-tile" {{
  call void @llvm.x86.tilerelease()
  ret i32 0
}}"""


class _Function:
    def __init__(self, kind: TileInstruction, shape: TileShape) -> None:
        self._kind, self._shape = kind, shape
        self._name = shape.name(kind)
        self._features = f'"target-features"="+amx-tile,+{kind.feature}"'
        self._sums = shape.high * shape.wide
        # The operand with fewer tiles stays in its registers; the other's take turns in the rest.
        kept = min(shape.high, shape.wide)
        free = _REGISTERS - self._sums
        count = kept if shape.high <= shape.wide else free - kept
        self._data = range(self._sums, self._sums + count)
        self._weights = range(self._data.stop, _REGISTERS)

    def start(self) -> str:
        """Set up the registers. Linux lets a process use AMX once it has asked: the first call asks."""
        name = self._name
        lines = [
            f'@{name}_tiles = private constant [64 x i8] c"{self._configuration()}", align 64',
            f"@{name}_permitted = private global i8 0",
            f"define linkonce_odr i32 @{name}{_START}() nounwind {self._features} {{",
            f"  %permitted = load atomic i8, ptr @{name}_permitted monotonic, align 1",
            "  %may = icmp ne i8 %permitted, 0",
            "  br i1 %may, label %start, label %ask",
            "ask:",
            f"  call i64 (i64, ...) @syscall(i64 {amx.ARCH_PRCTL}, i64 {amx.ARCH_REQ_XCOMP_PERM}, "
            f"i64 {amx.XFEATURE_XTILEDATA})",
            f"  store atomic i8 1, ptr @{name}_permitted monotonic, align 1",
            "  br label %start",
            "start:",
            f"  call void @llvm.x86.ldtilecfg(ptr @{name}_tiles)",
            "  ret i32 0",
            "}",
        ]
        return "\n".join(lines)

    def definition(self) -> str:
        name = self._name
        loops = [(f"%n{i}", f"%x_step{i}", f"%w_step{i}") for i in range(LOOPS)]
        numbers = [
            "%blocks",
            *(f"%{step}_{of}" for step in ("block", "tile", "row") for of in ("sums", "x")),
            "%tile_w",
            *(n for loop in loops for n in loop),
        ]
        arguments = ", ".join(
            [
                "ptr %sums",
                "ptr %last",
                "ptr %x",
                "ptr %w",
                "ptr %next",
                *(f"i64 {n}" for n in numbers),
            ]
        )
        lines = [
            f"define linkonce_odr i32 @{name}({arguments}) nounwind {self._features} {{",
            "start:",
            "  br label %block",
            "block:",
            "  %b = phi i64 [0, %start], [%b_next, %store]",
            "  %s_block = phi ptr [%sums, %start], [%s_next, %store]",
            "  %x_block = phi ptr [%x, %start], [%x_next, %store]",
            "  %n_block = phi ptr [%next, %start], [%prefetched, %store]",
            *(f"  call void @llvm.x86.tilezero(i8 {register})" for register in range(self._sums)),
            "  br label %loop0",
            *self._loops(),
            "store:",
            *self._stores(),
            "  %b_next = add i64 %b, 1",
            "  %s_next = getelementptr i8, ptr %s_block, i64 %block_sums",
            "  %x_next = getelementptr i8, ptr %x_block, i64 %block_x",
            "  %again = icmp ult i64 %b_next, %blocks",
            "  br i1 %again, label %block, label %done",
            "done:",
            "  ret i32 0",
            "}",
        ]
        return "\n".join(lines)

    def _configuration(self) -> str:
        """The operand of LDTILECFG: palette 1, then bytes per row and rows of each register."""
        widths = [_REGISTER_BYTES] * _REGISTERS
        heights = [self._shape.rows] * _REGISTERS
        for register in self._data:
            widths[register] = 4 * self._shape.quads
        for register in self._weights:
            heights[register] = self._shape.quads
        unused = [0] * _REGISTERS
        content = [1, *[0] * 15]
        for width in (*widths, *unused):
            content += [width, 0]
        return "".join(f"\\{byte:02X}" for byte in (*content, *heights, *unused))

    def _loops(self) -> Iterator[str]:
        before, x, w, next_ = "block", "%x_block", "%w", "%n_block"
        for i in range(LOOPS):
            yield f"loop{i}:"
            yield f"  %i{i} = phi i64 [0, %{before}], [%i{i}_next, %latch{i}]"
            yield f"  %x{i} = phi ptr [{x}, %{before}], [%x{i}_next, %latch{i}]"
            yield f"  %w{i} = phi ptr [{w}, %{before}], [%w{i}_next, %latch{i}]"
            yield f"  %next{i} = phi ptr [{next_}, %{before}], [%prefetched, %latch{i}]"
            before, x, w, next_ = f"loop{i}", f"%x{i}", f"%w{i}", f"%next{i}"
            if i + 1 < LOOPS:
                yield f"  br label %loop{i + 1}"
        arguments = [f"i32 {argument}" for argument in prefetch.SECOND_LEVEL]
        for line in range(self._shape.ahead):
            yield f"  %line{line} = getelementptr i8, ptr {next_}, i64 {prefetch.LINE * line}"
            yield f"  call void @llvm.prefetch.p0(ptr %line{line}, {', '.join(arguments)})"
        yield f"  %prefetched = getelementptr i8, ptr {next_}, i64 {prefetch.LINE * self._shape.ahead}"
        yield from self._products(x, w)
        yield f"  br label %latch{LOOPS - 1}"
        for i in reversed(range(LOOPS)):
            after = f"latch{i - 1}" if i else "store"
            yield f"latch{i}:"
            yield f"  %i{i}_next = add i64 %i{i}, 1"
            yield f"  %x{i}_next = getelementptr i8, ptr %x{i}, i64 %x_step{i}"
            yield f"  %w{i}_next = getelementptr i8, ptr %w{i}, i64 %w_step{i}"
            yield f"  %more{i} = icmp ult i64 %i{i}_next, %n{i}"
            yield f"  br i1 %more{i}, label %loop{i}, label %{after}"

    def _products(self, x: str, w: str) -> Iterator[str]:
        high, wide = self._shape.high, self._shape.wide
        rows = _Operand("x", x, "%tile_x", "%row_x", self._data)
        columns = _Operand("w", w, "%tile_w", str(_REGISTER_BYTES), self._weights)
        kept, passing = (rows, columns) if high <= wide else (columns, rows)
        for place in range(min(high, wide)):
            yield from kept.load(place)
        for turn in range(max(high, wide)):
            yield from passing.load(turn)
            for place in range(min(high, wide)):
                row, column = (place, turn) if high <= wide else (turn, place)
                registers = (
                    row * wide + column,
                    rows.register(row),
                    columns.register(column),
                )
                operands = ", ".join(f"i8 {register}" for register in registers)
                yield f"  call void @{self._kind.intrinsic}({operands})"

    def _stores(self) -> Iterator[str]:
        before = "%s_block"
        for row in range(self._shape.high):
            first = before
            if row:
                first = f"%s_tile{row}"
                yield f"  {first} = getelementptr i8, ptr {before}, i64 %tile_sums"
            before = first
            for column in range(self._shape.wide):
                place = f"%s_tile{row}_{column}"
                yield f"  {place} = getelementptr i8, ptr {first}, i64 {_REGISTER_BYTES * column}"
                register = row * self._shape.wide + column
                operands = f"i8 {register}, ptr {place}, i64 %row_sums"
                yield f"  call void @llvm.x86.tilestored64({operands})"


@dataclass(frozen=True)
class _Operand:
    """Tiles of data or weights, and the registers that take turns to hold them."""

    name: str
    first: str
    """Pointer to the first tile."""
    step: str
    """Bytes from one tile to the next."""
    row: str
    """Bytes from one row to the next."""
    registers: range

    def register(self, tile: int) -> int:
        return self.registers[tile % len(self.registers)]

    def load(self, tile: int) -> Iterator[str]:
        """Tiles are loaded in order."""
        place, before = (
            f"%{self.name}_tile{at}" if at else self.first for at in (tile, max(0, tile - 1))
        )
        if tile:
            yield f"  {place} = getelementptr i8, ptr {before}, i64 {self.step}"
        operands = f"i8 {self.register(tile)}, ptr {place}, i64 {self.row}"
        yield f"  call void @llvm.x86.tileloadd64({operands})"
