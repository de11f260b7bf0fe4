"""Prefetch the weights of matrix products and convolutions on CPUs.

Weights are packed in the order in which a kernel reads them: a chunk for each block of rows, then the
next. Inside a network they come from memory, and the first rows of each block wait for them; the
hardware's prefetchers start too late, and stop at each page. So while a kernel computes the rows of a
chunk, it asks for the next chunk, a part with each row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LEAST = 1 << 18
"""Bytes of weights below which it is not worth while."""
CHUNK = 1 << 18
"""Bytes of a chunk above which it would displace the data from the second-level cache."""
ROWS = 4
"""Rows per chunk below which there is no time to load the next one."""
_LINE = 64
_READ, _SECOND_LEVEL, _DATA = 0, 2, 1
"""Arguments of ``llvm.prefetch``."""

Index = Mapping[Any, int]
"""A sum: what each variable is multiplied by, and the constant, of the key None."""


@dataclass(frozen=True)
class _Stream:
    """A chunk of an operand that all iterations of a loop read."""

    buffer: Any
    start: Index
    """Of the chunk, in elements."""
    length: int
    """Elements."""


def insert(func: Any) -> Any:
    """The PrimFunc, which has flat buffers and vectors, with prefetches; itself if there are none."""
    from tvm import tirx
    from tvm_ffi import structural_mutate

    enclosing: list[Any] = []
    values: dict[Any, Any] = {}
    inserted = 0

    def bind(statement: Any, mutator: Any) -> Any:
        values[statement.var] = statement.value
        return statement

    def visit(loop: Any, mutator: Any) -> Any:
        nonlocal inserted
        before = inserted
        enclosing.append(loop)
        changed = mutator.default_mutate(loop)
        if inserted == before and loop.kind == tirx.ForKind.SERIAL:
            asked = [
                statement
                for stream in _streams(loop, values)
                for statement in _ask(stream, _rows(enclosing, stream))
            ]
            if asked:
                inserted += 1
                body = tirx.SeqStmt([*asked, loop.body])
                changed = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body)
        enclosing.pop()
        return changed

    body = structural_mutate(func.body, ((tirx.Bind, bind), (tirx.For, visit)))
    return func.with_body(body) if inserted else func


def _streams(loop: Any, outside: Mapping[Any, Any]) -> list[_Stream]:
    """Of large operands, the chunks that each iteration of the loop reads from start to end."""
    from tvm import ir, tirx
    from tvm_ffi import structural_walk

    values = dict(outside)
    extents: dict[Any, int] = {}
    loads: list[Any] = []

    def bind(statement: Any) -> None:
        values[statement.var] = statement.value

    def inner(statement: Any) -> None:
        extents[statement.loop_var] = _constant(statement.extent) or 0

    structural_walk(
        loop.body, ((tirx.Bind, bind), (tirx.For, inner), (ir.TensorLoad, loads.append))
    )
    if not extents or 0 in extents.values():
        return []
    buffers: dict[Any, tuple[Any, list[tuple[Index | None, int]]]] = {}
    for load in loads:
        index = load.indices[0] if len(load.indices) == 1 else None
        if isinstance(index, tirx.Ramp) and _bytes(load.source) >= LEAST:
            _, parts = buffers.setdefault(load.source, (load.source, []))
            parts.append((_linear(index.base, values), _constant(index.lanes) or 0))
    streams = (_stream(buffer, parts, extents) for buffer, parts in buffers.values())
    return [s for s in streams if s is not None and loop.loop_var not in s.start]


def _stream(
    buffer: Any, parts: Sequence[tuple[Index | None, int]], extents: Mapping[Any, int]
) -> _Stream | None:
    """What the inner loops, with these ``extents``, read by vectors of so many lanes at these indices;
    None unless it is contiguous."""
    indices = [index for index, _ in parts if index is not None]
    lanes = parts[0][1]
    if len(indices) < len(parts) or any(n != lanes for _, n in parts):
        return None
    first = {v: c for v, c in indices[0].items() if v is not None and c}
    if any({v: c for v, c in i.items() if v is not None and c} != first for i in indices):
        return None
    inner = {variable: c for variable, c in first.items() if variable in extents}
    offsets = {index.get(None, 0) for index in indices}
    span = sum(c * (extents[v] - 1) for v, c in inner.items())
    length = span + max(offsets) - min(offsets) + lanes
    read = math.prod(extents[v] for v in inner) * len(offsets) * lanes
    if not inner or min(inner.values()) < 0 or read != length:
        return None
    if length * buffer.dtype.itemsize > CHUNK:
        return None
    outer = {variable: c for variable, c in first.items() if variable not in extents}
    return _Stream(buffer, {**outer, None: min(offsets)}, length)


def _rows(enclosing: Sequence[Any], stream: _Stream) -> list[Any]:
    """The innermost of the loops whose iterations all read the same chunk."""
    from tvm import tirx

    rows: list[Any] = []
    for loop in reversed(enclosing):
        if loop.kind != tirx.ForKind.SERIAL or loop.loop_var in stream.start:
            break
        if _constant(loop.extent) is None or _constant(loop.min) != 0:
            break
        rows.insert(0, loop)
    return rows


def _ask(stream: _Stream, rows: Sequence[Any]) -> Iterator[Any]:
    """Statements for each iteration of ``rows`` that load its part of the chunk after this one."""
    from tvm import tirx

    count = math.prod(int(loop.extent) for loop in rows)
    if count < ROWS:
        return
    size = stream.buffer.dtype.itemsize
    lines = math.ceil(stream.length * size / _LINE / count)
    kind = rows[-1].loop_var.ty.dtype
    line = tirx.Var("line", kind)
    row = tirx.const(0, kind)
    for loop in rows:
        row = row * int(loop.extent) + loop.loop_var
    index = (row * lines + line) * (_LINE // size)
    for variable, factor in stream.start.items():
        index += factor if variable is None else variable.astype(kind) * factor
    place = tirx.address_of(tirx.BufferLoad(stream.buffer, [index + stream.length]))
    prefetch = tirx.call_llvm_intrin("void", "llvm.prefetch", place, _READ, _SECOND_LEVEL, _DATA)
    yield tirx.For(line, 0, lines, tirx.ForKind.SERIAL, tirx.Evaluate(prefetch))


def _linear(expression: Any, values: Mapping[Any, Any]) -> Index | None:
    """The expression as a sum, with variables replaced by their ``values``; None if it is none."""
    from tvm import tirx

    if (constant := _constant(expression)) is not None:
        return {None: constant}
    if isinstance(expression, tirx.Var):
        if expression in values:
            return _linear(values[expression], values)
        return {expression: 1}
    if isinstance(expression, tirx.Cast):
        return _linear(expression.value, values)
    if not isinstance(expression, tirx.Add | tirx.Sub | tirx.Mul):
        return None
    left, right = _linear(expression.a, values), _linear(expression.b, values)
    if left is None or right is None:
        return None
    if isinstance(expression, tirx.Mul):
        for one, other in ((left, right), (right, left)):
            if set(one) == {None}:
                return {variable: c * one[None] for variable, c in other.items()}
        return None
    sign = 1 if isinstance(expression, tirx.Add) else -1
    total = dict(left)
    for variable, c in right.items():
        total[variable] = total.get(variable, 0) + sign * c
    return total


def _constant(expression: Any) -> int | None:
    from tvm import tirx

    return int(expression) if isinstance(expression, int | tirx.IntImm) else None


def _bytes(buffer: Any) -> int:
    extents = [_constant(extent) for extent in buffer.shape]
    return math.prod(n or 0 for n in extents) * buffer.dtype.itemsize
