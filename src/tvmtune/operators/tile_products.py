"""Products of tiles by Intel's AMX: loops that a schedule marks become calls of functions in LLVM IR.

AMX has eight registers of 16 rows with 64 bytes each. An instruction multiplies a tile of data, up to
16 rows of 64 bytes of terms, by a tile of weights in the blocks of
:func:`tvmtune.passes.packed_products.blocked_weights`, and adds the products to a tile of sums: see
Intel, "Architecture Instruction Set Extensions Programming Reference", chapter 3.

The marked loops stay plain loops while a kernel is scheduled and its buffers get their places, so that
TVM knows what they read and write, and their meaning does not depend on the instructions. If they are
not what a function computes, they are left as they are: slow, but right.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tvmtune.dot_instructions import TILES, TileInstruction

MARK = "tvmtune.tile_products"
"""Annotation of the outermost of the loops: rows, columns, terms."""
ROWS = 16
"""Of a tile, at most."""
COLUMNS = 16
"""Of a tile: sums of 32 bits."""
QUADS = 16
"""32-bit groups of terms in a row of a tile of data, at most."""
SUMS = 4
"""Tiles of sums, at most."""
_LOOPS = 3
"""Over terms outside of a tile."""
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18
"""Linux lets a process use AMX once it has asked for it: see the kernel's documentation, x86/xstate. The
first call of each function asks."""
_PREFIX = "tvmtune_tiles_"
_NAME = re.compile(_PREFIX + r"(?P<kind>\w+?)_(?P<rows>\d+)x(?P<high>\d+)_(?P<wide>\d+)_(?P<quads>\d+)")


@dataclass(frozen=True)
class TileShape:
    """What a function computes at a time: ``high`` tiles with so many ``rows``, one below the other,
    and ``wide`` tiles of 16 columns next to each other; ``quads`` groups of terms per instruction."""

    rows: int
    high: int
    wide: int
    quads: int

    @classmethod
    def of(cls, rows: int, columns: int, quads: int) -> TileShape | None:
        """The best one for so many rows and columns in all; None if the registers do not hold it."""
        wide = columns // COLUMNS
        if columns % COLUMNS or not 0 < wide <= SUMS or quads > QUADS:
            return None
        height = max(n for n in range(1, ROWS + 1) if rows % n == 0)
        high = 2 if 2 * wide <= SUMS and rows // height % 2 == 0 else 1
        return cls(height, high, wide, quads)

    def name(self, kind: str) -> str:
        """Of the function for one kind of instruction."""
        return f"{_PREFIX}{kind}_{self.rows}x{self.high}_{self.wide}_{self.quads}"


def insert(mod: Any) -> Any:
    """A module with blocks; functions that have marked loops get flat buffers and calls instead."""
    import tvm
    from tvm import s_tir, tirx

    if not any(_is_marked(func) for func in mod.functions.values()):
        return mod
    flatten = tvm.ir.transform.Sequential(
        [
            s_tir.transform.CanonicalizeLoop(),
            s_tir.transform.LowerCrossThreadReduction(),
            s_tir.transform.LowerInitBlock(),
            s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
            s_tir.transform.ConvertBlocksToOpaque(),
            s_tir.transform.CompactBufferAllocation(),
            s_tir.transform.LowerMatchBuffer(),
            s_tir.transform.StmtSimplify(),
            s_tir.transform.LowerOpaqueBlock(),
            tirx.transform.FlattenBuffer(),
            tirx.transform.prim_func_pass(_with_calls, opt_level=0, name="tvmtune.TileProducts"),
        ]
    )
    return flatten(mod)


def _is_marked(func: Any) -> bool:
    from tvm import tirx
    from tvm_ffi import structural_walk

    found: list[Any] = []
    if isinstance(func, tirx.PrimFunc):
        structural_walk(func.body, (tirx.For, lambda loop: found.append(MARK in loop.annotations)))
    return any(found)


def _with_calls(func: Any, mod: Any, context: Any) -> Any:
    from tvm import tirx
    from tvm_ffi import structural_mutate

    def replace(loop: Any, mutator: Any) -> Any:
        if MARK in loop.annotations:
            return _call(loop) or loop
        return mutator.default_mutate(loop)

    return func.with_body(structural_mutate(func.body, (tirx.For, replace)))


def _call(outermost: Any) -> Any | None:
    """The call that does what the loops do; None if no function does."""
    from tvm import tirx

    spatial, body = _nest(outermost)
    if not isinstance(body, tirx.SeqStmt) or len(body.seq) != 2:
        return None
    zero, inner = body.seq
    terms, store = _nest(inner)
    read = _product(store)
    if read is None or not _is_zero(zero, store):
        return None
    kind = next((k for k in TILES if k.reads(*(str(r.source.dtype) for r in read))), None)
    loops = {loop.loop_var: int(loop.extent) for loop in (*spatial, *terms)}
    indices = [_index(each.indices, loops) for each in (*read, store)]
    if kind is None or None in indices:
        return None
    x, w, sums = indices
    plan = _Plan.of(
        kind,
        [(loops[v.loop_var], *(i.steps.get(v.loop_var, 0) for i in indices)) for v in spatial],
        [(loops[v.loop_var], *(i.steps.get(v.loop_var, 0) for i in indices)) for v in terms],
    )
    if plan is None:
        return None
    pointers = [
        tirx.address_of(tirx.BufferLoad(buffer, [index.start]))
        for buffer, index in ((store.buffer, sums), (read[0].source, x), (read[1].source, w))
    ]
    numbers = [tirx.const(number, "int64") for number in plan.arguments]
    name = plan.shape.name(kind.name)
    return tirx.Evaluate(tirx.call_extern("int32", name, *pointers, *numbers))


def _nest(statement: Any) -> tuple[list[Any], Any]:
    """Serial loops from zero, each directly within the one before, and the body of the last."""
    from tvm import tirx

    loops = []
    while (
        isinstance(statement, tirx.For)
        and statement.kind == tirx.ForKind.SERIAL
        and isinstance(statement.extent, tirx.IntImm)
        and isinstance(statement.min, tirx.IntImm)
        and int(statement.min) == 0
    ):
        loops.append(statement)
        statement = statement.body
    return loops, statement


def _is_zero(statement: Any, store: Any) -> bool:
    """Whether a statement stores zero where ``store`` does."""
    import tvm_ffi
    from tvm import tirx

    return (
        isinstance(statement, tirx.BufferStore)
        and statement.buffer.same_as(store.buffer)
        and tvm_ffi.structural_equal(statement.indices, store.indices)
        and isinstance(statement.value, tirx.IntImm | tirx.FloatImm)
        and float(statement.value.value) == 0
    )


def _product(store: Any) -> tuple[Any, Any] | None:
    """The elements of data and weights of which a statement adds the product to what it stores."""
    import tvm
    import tvm_ffi
    from tvm import tirx

    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, tirx.Add):
        return None
    sums, terms = store.value.a, store.value.b
    if not isinstance(terms, tirx.Mul) or not isinstance(sums, tvm.ir.TensorLoad):
        return None
    if not sums.source.same_as(store.buffer) or not tvm_ffi.structural_equal(
        sums.indices, store.indices
    ):
        return None
    x, w = (_stored(each) for each in (terms.a, terms.b))
    return (x, w) if x is not None and w is not None else None


def _stored(value: Any) -> Any | None:
    """The element that a factor converts to the type of the sums; None for any other computation."""
    import tvm
    from tvm import tirx

    while not isinstance(value, tvm.ir.TensorLoad):
        if isinstance(value, tirx.Cast):
            value = value.value
        elif isinstance(value, tvm.ir.Call) and value.op.name.endswith("reinterpret"):
            value = value.args[0]
        else:
            return None
    return value


@dataclass(frozen=True)
class _Index:
    """An index that is linear in the variables of some loops."""

    start: Any
    """Where all of them are 0."""
    steps: dict[Any, int]
    """What each of them adds per iteration."""


def _index(indices: Any, loops: Mapping[Any, int]) -> _Index | None:
    if len(indices) != 1:
        return None
    split = _split(indices[0], loops)
    if split is None:
        return None
    steps, start = split
    return _Index(_int64(start), steps)


def _split(value: Any, loops: Mapping[Any, int]) -> tuple[dict[Any, int], Any] | None:
    """A sum's terms that depend on the loops, and the rest; None if it is not linear in them."""
    from tvm import tirx

    if not _uses(value, loops):
        return {}, value
    if isinstance(value, tirx.Var):
        return {value: 1}, 0
    if isinstance(value, tirx.Cast):
        return _split(value.value, loops)
    if not isinstance(value, tirx.Add | tirx.Sub | tirx.Mul):
        return None
    left, right = _split(value.a, loops), _split(value.b, loops)
    if left is None or right is None:
        return None
    if isinstance(value, tirx.Mul):
        for (steps, start), (others, factor) in ((left, right), (right, left)):
            if not others and isinstance(factor, int | tirx.IntImm):
                number = int(factor)
                return {v: step * number for v, step in steps.items()}, start * number
        return None
    sign = 1 if isinstance(value, tirx.Add) else -1
    steps = dict(left[0])
    for variable, step in right[0].items():
        steps[variable] = steps.get(variable, 0) + sign * step
    return steps, left[1] + sign * right[1]


def _uses(value: Any, loops: Mapping[Any, int]) -> bool:
    from tvm import tirx
    from tvm_ffi import structural_walk

    found: list[bool] = []
    structural_walk(value, (tirx.Var, lambda variable: found.append(variable in loops)))
    return any(found)


def _int64(value: Any) -> Any:
    from tvm import tirx

    return tirx.const(value, "int32") if isinstance(value, int) else value


@dataclass(frozen=True)
class _Plan:
    """How a function computes some loops."""

    shape: TileShape
    arguments: list[int]
    """Blocks of rows; bytes between rows of sums and of data; bytes between tiles of weights; for each
    loop over terms, the outermost first: iterations, bytes of data and of weights per iteration."""

    @classmethod
    def of(
        cls, kind: TileInstruction, spatial: list[tuple[int, ...]], terms: list[tuple[int, ...]]
    ) -> _Plan | None:
        """Loops are (iterations, steps of data, weights and sums in elements), the outermost first.
        None if no function computes them."""
        if len(spatial) not in (2, 3) or len(terms) < 2:
            return None
        own = kind.terms
        rows, row_x, row_w, row_sums = spatial[0]
        columns, *steps = spatial[-1]
        if row_w or columns != COLUMNS or steps != [0, own, 1]:
            return None
        wide, *tile = spatial[1] if len(spatial) == 3 else (1, 0, 0, COLUMNS)
        if tile[0] or tile[2] != COLUMNS or terms[-1] != (own, 1, 1, 0):
            return None
        *outer, (quads, *steps) = terms[:-1]
        if steps != [own, COLUMNS * own, 0] or any(loop[3] for loop in outer):
            return None
        shape = TileShape.of(rows, wide * COLUMNS, quads)
        if shape is None or len(outer) > _LOOPS:
            return None
        outer = [(1, 0, 0, 0)] * (_LOOPS - len(outer)) + outer
        size = kind.bytes
        arguments = [rows // (shape.rows * shape.high), 4 * row_sums, size * row_x, size * tile[1]]
        for count, x, w, _ in outer:
            arguments += [count, size * x, size * w]
        return cls(shape, arguments)


def definitions(called: Collection[str]) -> list[str]:
    """In LLVM IR, of the functions here among those whose names are ``called``."""
    found = [match for name in sorted(called) if (match := _NAME.fullmatch(name))]
    if not found:
        return []
    kinds = {kind.name: kind for kind in TILES}
    functions = [
        _definition(
            kinds[match["kind"]],
            TileShape(*(int(match[part]) for part in ("rows", "high", "wide", "quads"))),
        )
        for match in found
    ]
    return [*_declarations(), *functions]


def _declarations() -> Iterator[str]:
    yield "declare i64 @syscall(i64, ...)"
    yield "declare void @llvm.x86.ldtilecfg(ptr)"
    yield "declare void @llvm.x86.tilerelease()"
    yield "declare void @llvm.x86.tilezero(i8 immarg)"
    yield "declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)"
    yield "declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)"
    for kind in TILES:
        yield f"declare void @{kind.intrinsic}(i8 immarg, i8 immarg, i8 immarg)"


def _configuration(shape: TileShape, data: range, weights: range) -> str:
    """The operand of LDTILECFG: palette 1, then bytes per row and rows of each register."""
    widths, heights = [64] * 8, [shape.rows] * 8
    for register in data:
        widths[register] = 4 * shape.quads
    for register in weights:
        heights[register] = shape.quads
    content = [1, *[0] * 15]
    for width in (*widths, *[0] * 8):
        content += [width, 0]
    content += [*heights, *[0] * 8]
    return "".join(f"\\{byte:02X}" for byte in content)


def _definition(kind: TileInstruction, shape: TileShape) -> str:
    """A function of pointers to sums, data and weights, and of :attr:`_Plan.arguments`."""
    name = shape.name(kind.name)
    count = shape.high * shape.wide
    data = range(count, count + shape.high)
    weights = range(data.stop, min(8, data.stop + shape.wide))
    features = f"+amx-tile,+{kind.feature}"
    loops = range(_LOOPS)
    numbers = ["%blocks", "%row_sums", "%row_x", "%tile_w"]
    numbers += [f"%{part}{i}" for i in loops for part in ("n", "x_step", "w_step")]
    lines = [
        f"@{name}_tiles = private constant [64 x i8] c\"{_configuration(shape, data, weights)}\""
        ", align 64",
        f"@{name}_permitted = private global i8 0",
        f"define linkonce_odr i32 @{name}(ptr %sums, ptr %x, ptr %w, "
        + ", ".join(f"i64 {number}" for number in numbers)
        + f') noinline nounwind "target-features"="{features}" {{',
        "entry:",
        f"  %permitted = load i8, ptr @{name}_permitted",
        "  %may = icmp ne i8 %permitted, 0",
        "  br i1 %may, label %start, label %ask",
        "ask:",
        f"  call i64 (i64, ...) @syscall(i64 {_ARCH_PRCTL}, i64 {_ARCH_REQ_XCOMP_PERM}, "
        f"i64 {_XFEATURE_XTILEDATA})",
        f"  store i8 1, ptr @{name}_permitted",
        "  br label %start",
        "start:",
        f"  call void @llvm.x86.ldtilecfg(ptr @{name}_tiles)",
        f"  %high_sums = mul i64 %row_sums, {shape.rows}",
        f"  %high_x = mul i64 %row_x, {shape.rows}",
        f"  %block_sums = mul i64 %high_sums, {shape.high}",
        f"  %block_x = mul i64 %high_x, {shape.high}",
        "  br label %block",
        "block:",
        "  %b = phi i64 [0, %start], [%b_next, %end]",
        "  %s_block = phi ptr [%sums, %start], [%s_next, %end]",
        "  %x_block = phi ptr [%x, %start], [%x_next, %end]",
        *(f"  call void @llvm.x86.tilezero(i8 {register})" for register in range(count)),
        "  br label %loop0",
    ]
    outer_x, outer_w, before = "%x_block", "%w", "block"
    for i in loops:
        lines += [
            f"loop{i}:",
            f"  %i{i} = phi i64 [0, %{before}], [%i{i}_next, %latch{i}]",
            f"  %x{i} = phi ptr [{outer_x}, %{before}], [%x{i}_next, %latch{i}]",
            f"  %w{i} = phi ptr [{outer_w}, %{before}], [%w{i}_next, %latch{i}]",
        ]
        outer_x, outer_w, before = f"%x{i}", f"%w{i}", f"loop{i}"
        if i < _LOOPS - 1:
            lines.append(f"  br label %loop{i + 1}")
    last = _LOOPS - 1
    at = f"%x{last}"
    for row, register in enumerate(data):
        if row:
            lines.append(f"  %x_row{row} = getelementptr i8, ptr {at}, i64 %high_x")
            at = f"%x_row{row}"
        lines.append(f"  call void @llvm.x86.tileloadd64(i8 {register}, ptr {at}, i64 %row_x)")
    at = f"%w{last}"
    for column in range(shape.wide):
        register = weights[column % len(weights)]
        if column:
            lines.append(f"  %w_col{column} = getelementptr i8, ptr {at}, i64 %tile_w")
            at = f"%w_col{column}"
        lines.append(f"  call void @llvm.x86.tileloadd64(i8 {register}, ptr {at}, i64 64)")
        for row, left in enumerate(data):
            target = row * shape.wide + column
            lines.append(f"  call void @{kind.intrinsic}(i8 {target}, i8 {left}, i8 {register})")
    lines.append(f"  br label %latch{last}")
    for i in reversed(loops):
        following = f"latch{i - 1}" if i else "store"
        lines += [
            f"latch{i}:",
            f"  %i{i}_next = add i64 %i{i}, 1",
            f"  %x{i}_next = getelementptr i8, ptr %x{i}, i64 %x_step{i}",
            f"  %w{i}_next = getelementptr i8, ptr %w{i}, i64 %w_step{i}",
            f"  %more{i} = icmp ult i64 %i{i}_next, %n{i}",
            f"  br i1 %more{i}, label %loop{i}, label %{following}",
        ]
    lines.append("store:")
    at = "%s_block"
    for row in range(shape.high):
        if row:
            lines.append(f"  %s_row{row} = getelementptr i8, ptr %s_block, i64 %high_sums")
            at = f"%s_row{row}"
        for column in range(shape.wide):
            place = at
            if column:
                place = f"%s_row{row}_{column}"
                lines.append(f"  {place} = getelementptr i8, ptr {at}, i64 {64 * column}")
            register = row * shape.wide + column
            lines.append(
                f"  call void @llvm.x86.tilestored64(i8 {register}, ptr {place}, i64 %row_sums)"
            )
    lines += [
        "  br label %end",
        "end:",
        "  %b_next = add i64 %b, 1",
        "  %s_next = getelementptr i8, ptr %s_block, i64 %block_sums",
        "  %x_next = getelementptr i8, ptr %x_block, i64 %block_x",
        "  %again = icmp ult i64 %b_next, %blocks",
        "  br i1 %again, label %block, label %done",
        "done:",
        "  call void @llvm.x86.tilerelease()",
        "  ret i32 0",
        "}",
    ]
    return "\n".join(lines)
