"""Loops that a schedule marks become calls of the functions in :mod:`tvmtune.operators.tile_functions`.

The marked loops stay plain loops while a kernel is scheduled and its buffers get their places, so that
TVM knows what they read and write, and their meaning does not depend on the instructions. If they are
not what a function computes, they are left as they are: slow, but right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvmtune.dot_instructions import TILES, TileInstruction
from tvmtune.operators import linear_indices, tile_functions, tile_prefetches
from tvmtune.operators.tile_functions import COLUMNS, END, LOOPS, TileShape
from tvmtune.types import product

MARK = "tvmtune.tile_products"
"""Annotation of the outermost of the loops: lines of an image, rows, columns, terms."""


def with_calls(func: Any, mod: Any, context: Any) -> Any:
    """The PrimFunc, which has flat buffers, with calls instead of its marked loops."""
    from tvm import tirx
    from tvm_ffi import structural_mutate

    enclosing: list[Any] = []

    def visit(loop: Any, mutator: Any) -> Any:
        if MARK not in loop.annotations:
            enclosing.append(loop)
            changed = mutator.default_mutate(loop)
            enclosing.pop()
            return changed
        calls = _calls(loop, enclosing)
        return loop if calls is None else tirx.SeqStmt([tirx.Evaluate(call) for call in calls])

    with_calls = structural_mutate(func.body, (tirx.For, visit))
    return func.with_body(structural_mutate(with_calls, (tirx.For, _set_up_once)))


def _set_up_once(loop: Any, mutator: Any) -> Any:
    """If all calls within a loop that threads share need the same registers, each thread sets them up
    once, before its part of the loop: that takes as long as 20 instructions."""
    from tvm import tirx
    from tvm_ffi import structural_mutate, structural_walk

    if loop.kind != tirx.ForKind.PARALLEL:
        return mutator.default_mutate(loop)
    setup: dict[str, Any] = {}

    def find(statement: Any) -> None:
        if tile_functions.is_start(name := _function(statement)):
            setup[name] = statement

    def drop(statement: Any, mutator: Any) -> Any:
        return tirx.Evaluate(0) if _function(statement) in (*setup, END) else statement

    structural_walk(loop.body, (tirx.Evaluate, find))
    if len(setup) != 1:
        return loop
    part = tirx.For(
        *(loop.loop_var, loop.min, loop.extent, loop.kind),
        structural_mutate(loop.body, (tirx.Evaluate, drop)),
        annotations=loop.annotations,
    )
    release = tirx.Evaluate(tirx.call_extern("int32", END))
    work = tirx.SeqStmt([*setup.values(), part, release])
    zero = tirx.const(0, "int32")
    return tirx.AttrStmt(zero, "pragma_parallel_launch_point", zero, work)


def _function(statement: Any) -> str:
    """The C function that a statement calls; else empty."""
    from tvm import ir

    call = statement.value
    if isinstance(call, ir.Call) and getattr(call.op, "name", "").endswith("call_extern"):
        return str(call.args[0].value)
    return ""


def _calls(outermost: Any, enclosing: Sequence[Any]) -> tuple[Any, ...] | None:
    """Calls that together do what the loops do: set up the registers, compute, and release them. None
    if no function computes it. ``enclosing`` are the loops around them."""
    from tvm import tirx

    spatial, body = _nest(outermost)
    if not isinstance(body, tirx.SeqStmt) or len(body.seq) != 2:
        return None
    zero, inner = body.seq
    terms, store = _nest(inner)
    if not isinstance(store, tirx.BufferStore) or not _is_zero(zero, store):
        return None
    kind = instruction(store)
    read = [factor.element for factor in _factors(store)]
    loops = {loop.loop_var: int(loop.extent) for loop in (*spatial, *terms)}
    indices = [_index(each.indices, loops) for each in (*read, store)]
    if kind is None or any(index is None for index in indices):
        return None
    x, w, sums = found = [index for index in indices if index is not None]
    plan = _Plan.of(
        kind,
        [
            (loops[v.loop_var], *(i.steps.get(v.loop_var, 0) for i in found))
            for v in spatial
            if loops[v.loop_var] > 1
        ],
        [(loops[v.loop_var], *(i.steps.get(v.loop_var, 0) for i in found)) for v in terms],
    )
    if plan is None:
        return None
    # TVM shrinks a buffer to what it sees used of it: the call names the last sum, too.
    last = sums.start + sum(step * (loops[variable] - 1) for variable, step in sums.steps.items())
    weights, shape = read[1].source, plan.shape
    steps = product([loop.extent for loop in terms]) // (shape.quads * kind.terms)
    length = steps * shape.wide * COLUMNS * shape.quads * kind.terms
    ahead = tile_prefetches.ahead(weights, w.start, length, plan.blocks * steps, enclosing)
    if ahead is not None:
        shape = replace(shape, ahead=ahead.lines)
    places = (
        *((store.buffer, sums.start), (store.buffer, last), (read[0].source, x.start)),
        *((weights, w.start), (weights, w.start if ahead is None else ahead.start)),
    )
    pointers = [tirx.address_of(tirx.BufferLoad(buffer, [place])) for buffer, place in places]
    numbers = [tirx.const(number, "int64") for number in plan.arguments]
    return (
        tirx.call_extern("int32", shape.start_name(kind)),
        tirx.call_extern("int32", shape.name(kind), *pointers, *numbers),
        tirx.call_extern("int32", END),
    )


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


@dataclass(frozen=True)
class _Factor:
    """Of a product."""

    element: Any
    """Of an array, as it is stored."""
    meaning: str
    """Type of the value that its bits stand for."""
    dtype: str
    """Type to which this value is converted."""


def instruction(statement: Any) -> TileInstruction | None:
    """The one that adds the product that a statement adds to what it stores; None for any other
    statement."""
    from tvm import tirx

    if not isinstance(statement, tirx.BufferStore):
        return None
    factors = _factors(statement)
    return next((kind for kind in TILES if _multiplies(kind, factors, statement)), None)


def _multiplies(kind: TileInstruction, factors: list[_Factor], store: Any) -> bool:
    """Whether an instruction does what a statement does with these factors."""
    if len(factors) != 2:
        return False
    stored = [str(factor.element.source.dtype) for factor in factors]
    return (
        kind.reads(*stored)
        and [factor.meaning for factor in factors] == [kind.meaning or dtype for dtype in stored]
        and {str(store.buffer.dtype), *(factor.dtype for factor in factors)} == {kind.sums}
    )


def _factors(store: Any) -> list[_Factor]:
    """Of the product that a statement adds to what it stores; none if it does anything else."""
    import tvm
    import tvm_ffi
    from tvm import tirx

    if not isinstance(store.value, tirx.Add):
        return []
    sums, terms = store.value.a, store.value.b
    if not isinstance(terms, tirx.Mul) or not isinstance(sums, tvm.ir.TensorLoad):
        return []
    if not sums.source.same_as(store.buffer) or not tvm_ffi.structural_equal(
        sums.indices, store.indices
    ):
        return []
    factors = [_factor(each) for each in (terms.a, terms.b)]
    return [factor for factor in factors if factor is not None]


def _factor(value: Any) -> _Factor | None:
    """An element, or what its bits stand for, converted once; None for any other computation."""
    import tvm
    from tvm import tirx

    if not isinstance(value, tirx.Cast):
        return None
    element = value.value
    meaning = str(element.ty.dtype)
    if isinstance(element, tvm.ir.Call) and element.op.name.endswith("reinterpret"):
        element = element.args[0]
    if not isinstance(element, tvm.ir.TensorLoad):
        return None
    return _Factor(element, meaning, str(value.ty.dtype))


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
    found = linear_indices.linear(indices[0], {}, loops)
    if found is None:
        return None
    rest = {variable: step for variable, step in found.items() if variable not in loops}
    start = linear_indices.expression(rest, indices[0].ty.dtype)
    return _Index(start, {v: step for v, step in found.items() if v in loops})


@dataclass(frozen=True)
class _Plan:
    """How a function computes some loops."""

    shape: TileShape
    arguments: list[int]
    """After the pointers; see :func:`tile_functions.definitions`."""

    @property
    def blocks(self) -> int:
        """How often its tiles are repeated downwards."""
        return self.arguments[0]

    @classmethod
    def of(
        cls, kind: TileInstruction, spatial: list[tuple[int, ...]], terms: list[tuple[int, ...]]
    ) -> _Plan | None:
        """Loops are (iterations, steps of data, weights and sums in elements), the outermost first.
        None if no function computes them."""
        own, size = kind.terms, kind.bytes
        *loops, columns = spatial
        below = [loop for loop in loops if not loop[2]]
        beside = [loop for loop in loops if loop[2]]
        if columns != (COLUMNS, 0, own, 1) or len(below) > 2 or len(beside) > 1:
            return None
        lines, line_x, _, line_sums = below[0] if len(below) == 2 else (1, 0, 0, 0)
        rows, row_x, _, row_sums = below[-1] if below else (1, 0, 0, 0)
        wide, tile_x, tile_w, tile_sums = beside[0] if beside else (1, 0, 0, COLUMNS)
        if len(terms) < 2 or tile_x or tile_sums != COLUMNS or terms[-1] != (own, 1, 1, 0):
            return None
        *outer, (quads, *steps) = terms[:-1]
        if steps != [own, COLUMNS * own, 0] or any(loop[3] for loop in outer):
            return None
        shape = TileShape.of(rows, wide * COLUMNS, quads, lines)
        if shape is None or len(outer) > LOOPS:
            return None
        if lines == 1:
            line_x, line_sums = shape.rows * row_x, shape.rows * row_sums
        blocks = lines * rows // (shape.rows * shape.high)
        arguments = [blocks, 4 * shape.high * line_sums, size * shape.high * line_x]
        arguments += [4 * line_sums, size * line_x, 4 * row_sums, size * row_x, size * tile_w]
        outer = [(1, 0, 0, 0)] * (LOOPS - len(outer)) + outer
        for count, x, w, _ in outer:
            arguments += [count, size * x, size * w]
        return cls(shape, arguments)
