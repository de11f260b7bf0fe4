"""Prefetch the operands of matrix products and convolutions on CPUs.

Weights are packed in the order in which a kernel reads them: a chunk for each block of rows, then the
next. Inside a network they come from memory, and the first rows of each block wait for them; the
hardware's prefetchers start too late, and stop at each page. So while a kernel computes the rows of a
chunk, it asks for the next chunk, a part with each tile: loads would wait behind many requests made at
once.

The data of these rows come from other cores' caches if threads share the columns. Where a chunk has one
or two lines of each row, the hardware does not foresee the next ones. So each tile of rows asks for its
lines of the next chunk.

Weights that are transformed at run time are read once, in turns with other work, which stops the
hardware's prefetchers, too. Schedules mark the loops that read them with :data:`READ_ONCE`; each
iteration asks for what a later one reads.

The last requests may be for addresses beyond the operand. A prefetch of an address without memory does
nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvmtune.operators import linear_indices
from tvmtune.operators.linear_indices import Index

LEAST = 1 << 18
"""Bytes of weights below which it is not worth while."""
CHUNK = 1 << 18
"""Bytes of a chunk above which it would displace the data from the second-level cache."""
ROWS = 4
"""Rows per chunk below which there is no time to load the next one."""
SHARED = 1 << 15
"""Bytes of data below which they are in the first-level cache soon: its size on most CPUs."""
SHORT = 2
"""Lines of each row in a chunk, at most: more of them are a stream, which the hardware foresees."""
LINE = 64
"""Bytes that a request loads."""
READ_ONCE = "tvmtune.read_once"
"""Annotation of a loop whose iterations read neighboring parts of a large operand."""
LATER = 8
"""How many iterations later that is. Measured on a Zen 4 with parts of nine lines; 4 to 16 are as
good."""
SECOND_LEVEL = (0, 2, 1)
"""Arguments of ``llvm.prefetch``: read, into the second-level cache, data."""


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
    known: dict[Any, Index | None] = {}
    private = _allocated_by_threads(func.body)
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
            body = _Body.of(loop, values, known)
            later = list(_ask_for_later(loop, body)) if READ_ONCE in loop.annotations else []
            streams = _streams(loop, body)
            tiles = _tiles_within(loop, body) if streams else []
            parts = [
                statement
                for stream in streams
                for statement in _ask(stream, _rows(enclosing, stream), tiles)
            ]
            lines = [
                statement
                for data in _shared_data(loop, enclosing[:-1], body, private)
                for statement in _ask_for_lines(data, loop.loop_var.ty.dtype)
            ]
            if parts or lines or later:
                inserted += 1
                inner = _within([loop, *tiles], parts) if parts else loop
                changed = _within([inner], [*later, *lines])
        enclosing.pop()
        return changed

    body = structural_mutate(func.body, ((tirx.Bind, bind), (tirx.For, visit)))
    return func.with_body(body) if inserted else func


def _allocated_by_threads(statement: Any) -> set[Any]:
    """The buffers that each thread allocates for itself."""
    from tvm import tirx
    from tvm_ffi import structural_walk

    found: set[Any] = set()

    def allocated(each: Any) -> None:
        found.add(each.buffer)

    def within(loop: Any) -> None:
        if loop.kind == tirx.ForKind.PARALLEL:
            # Small buffers are on the stack; large ones are declared for the pointer that the runtime's
            # allocator returns.
            kinds = (tirx.AllocBuffer, tirx.DeclBuffer)
            structural_walk(loop.body, tuple((kind, allocated) for kind in kinds))

    structural_walk(statement, (tirx.For, within))
    return found


def _tiles_within(loop: Any, body: _Body) -> list[Any]:
    """The loops that do nothing but iterate over tiles of columns, each directly within the one before,
    the first within ``loop``. Loops over terms do not count: requests in them would keep LLVM from
    holding sums in registers."""
    from tvm import tirx

    stored = {v for index in body.stored() for v in linear_indices.variables(index)}
    tiles: list[Any] = []
    if stored.issuperset(body.extents):
        return tiles  # no loop over terms: these are the rows and vectors of one tile
    inner = loop.body
    while isinstance(inner, tirx.For) and inner.loop_var in stored:
        if inner.kind != tirx.ForKind.SERIAL or linear_indices.constant(inner.min) != 0:
            break
        tiles.append(inner)
        inner = inner.body
    return tiles


def _within(loops: Sequence[Any], statements: Sequence[Any]) -> Any:
    """The first of nested loops, with these statements at the start of the last one's body."""
    from tvm import tirx

    *outer, last = loops
    body = tirx.SeqStmt([*statements, last.body]) if statements else last.body
    for loop in (last, *reversed(outer)):
        body = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body)
    return body


def _streams(loop: Any, body: _Body) -> list[_Stream]:
    """Of large operands, the chunks that each iteration of the loop reads from start to end."""
    if not body.extents or 0 in body.extents.values():
        return []
    buffers: dict[Any, tuple[Any, list[tuple[Index | None, int]]]] = {}
    for buffer, index, lanes in body.large_vectors():
        _, parts = buffers.setdefault(buffer, (buffer, []))
        parts.append((index, lanes))
    streams = (_stream(buffer, parts, body.extents) for buffer, parts in buffers.values())
    return [s for s in streams if s is not None and loop.loop_var not in s.start]


@dataclass(frozen=True)
class _Body:
    """What a loop does in each iteration."""

    loads: list[Any]
    stores: list[Any]
    extents: dict[Any, int]
    """Of inner loops, by their variables; 0 for one that is not constant."""
    values: dict[Any, Any]
    """Of variables, those bound outside included."""
    known: dict[Any, Index | None]
    """What :meth:`index` has found, by expression, in this loop and in others of the PrimFunc."""

    @classmethod
    def of(cls, loop: Any, outside: Mapping[Any, Any], known: dict[Any, Index | None]) -> _Body:
        from tvm import ir, tirx
        from tvm_ffi import structural_walk

        body = cls([], [], {}, dict(outside), known)

        def bind(statement: Any) -> None:
            body.values[statement.var] = statement.value

        def inner(statement: Any) -> None:
            body.extents[statement.loop_var] = linear_indices.constant(statement.extent) or 0

        structural_walk(
            loop.body,
            (
                (tirx.Bind, bind),
                (tirx.For, inner),
                (ir.TensorLoad, body.loads.append),
                (tirx.BufferStore, body.stores.append),
            ),
        )
        return body

    def index(self, expression: Any) -> Index | None:
        """The expression as a sum; None if it is none. Loops around unrolled code ask for the thousands
        of indices in it once each."""
        if expression not in self.known:
            self.known[expression] = linear_indices.linear(expression, self.values)
        return self.known[expression]

    def stored(self) -> Iterator[Index]:
        """Where elements or vectors are stored, if that is a sum."""
        from tvm import tirx

        for store in self.stores:
            if len(store.indices) == 1:
                (at,) = store.indices
                index = self.index(at.base if isinstance(at, tirx.Ramp) else at)
                if index is not None:
                    yield index

    def large_vectors(self) -> Iterator[tuple[Any, Index | None, int]]:
        """Of the loads of vectors from large operands, the buffer, where the vector begins (None unless
        that is a sum), and its lanes."""
        from tvm import tirx

        for load in self.loads:
            index = load.indices[0] if len(load.indices) == 1 else None
            if isinstance(index, tirx.Ramp) and bytes_of(load.source) >= LEAST:
                lanes = linear_indices.constant(index.lanes) or 0
                yield load.source, self.index(index.base), lanes

    def large_scalars(self) -> Iterator[tuple[Any, list[Index | None]]]:
        """The buffers of at least :data:`SHARED` bytes that are read value by value, and where."""
        from tvm import tirx

        found: dict[Any, list[Any]] = {}
        for load in self.loads:
            if len(load.indices) == 1 and not isinstance(load.indices[0], tirx.Ramp):
                found.setdefault(load.source, []).append(load.indices[0])
        for buffer, indices in found.items():
            if bytes_of(buffer) >= SHARED:
                yield buffer, [self.index(index) for index in indices]


def _stream(
    buffer: Any, parts: Sequence[tuple[Index | None, int]], extents: Mapping[Any, int]
) -> _Stream | None:
    """What the inner loops, with these ``extents``, read by vectors of so many lanes at these indices;
    None unless it is contiguous."""
    indices = [index for index, _ in parts if index is not None]
    lanes = parts[0][1]
    if len(indices) < len(parts) or any(n != lanes for _, n in parts):
        return None
    first = linear_indices.variables(indices[0])
    if any(linear_indices.variables(index) != first for index in indices):
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
        if linear_indices.constant(loop.extent) is None or linear_indices.constant(loop.min) != 0:
            break
        rows.insert(0, loop)
    return rows


def _ask(stream: _Stream, rows: Sequence[Any], tiles: Sequence[Any]) -> Iterator[Any]:
    """Statements for each iteration of ``tiles``, the loops over tiles of columns within those over
    ``rows``, that load its part of the chunk after this one."""
    from tvm import tirx

    if _iterations(rows) < ROWS:
        return
    loops = [*rows, *tiles]
    size = stream.buffer.dtype.itemsize
    lines = math.ceil(stream.length * size / LINE / _iterations(loops))
    kind = rows[-1].loop_var.ty.dtype
    line = tirx.Var("line", kind)
    part = linear_indices.position([(loop.loop_var, int(loop.extent)) for loop in loops], kind)
    index = (part * lines + line) * (LINE // size) + linear_indices.expression(stream.start, kind)
    prefetch = _prefetch(stream.buffer, index + stream.length)
    yield tirx.For(line, 0, lines, tirx.ForKind.SERIAL, tirx.Evaluate(prefetch))


def _iterations(loops: Sequence[Any]) -> int:
    return math.prod(int(loop.extent) for loop in loops)


@dataclass(frozen=True)
class _TileData:
    """What each tile of rows reads, value by value, in each chunk of terms."""

    buffer: Any
    start: Index
    """Where the tile's first row begins, in elements."""
    offsets: set[int]
    """Of the elements from there, in the first chunk."""
    chunk: int
    """Terms."""


def _shared_data(
    tiles: Any, enclosing: Sequence[Any], body: _Body, private: Collection[Any]
) -> Iterator[_TileData]:
    """The data that all threads read in the iterations of ``tiles``, a loop over tiles of rows, in
    chunks of whole lines; not from ``private`` buffers."""
    from tvm import tirx

    threads, chunks = (
        [loop.loop_var for loop in enclosing if loop.kind == kind]
        for kind in (tirx.ForKind.PARALLEL, tirx.ForKind.SERIAL)
    )
    if not threads or not chunks:
        return
    scalars = [(b, i) for b, i in body.large_scalars() if b not in private]
    if not scalars:
        return
    if not any(tiles.loop_var in linear_indices.variables(index) for index in body.stored()):
        return  # a loop over terms: requests in it would keep LLVM from holding sums in registers
    for buffer, indices in scalars:
        data = _tile_data(buffer, indices, body.extents)
        if data is None or tiles.loop_var not in data.start:
            continue
        if any(variable in data.start for variable in threads):
            continue  # each thread has rows of its own
        # A loop over chunks continues each row.
        if not any(data.start.get(variable) == data.chunk for variable in chunks):
            continue
        size = data.chunk * buffer.dtype.itemsize
        if size % LINE == 0 and size <= SHORT * LINE:
            yield data


def _tile_data(
    buffer: Any, found: Sequence[Index | None], extents: Mapping[Any, int]
) -> _TileData | None:
    """What loads at these indices read within inner loops with these ``extents``; None unless the
    indices differ by constants and at most one inner loop, over neighboring terms."""
    indices = [index for index in found if index is not None]
    if len(indices) < len(found):
        return None
    start = linear_indices.variables(indices[0])
    if any(linear_indices.variables(index) != start for index in indices):
        return None
    inner = [variable for variable in start if variable in extents]
    if len(inner) > 1 or any(start.pop(variable) != 1 for variable in inner):
        return None
    terms = extents[inner[0]] if inner else 1
    offsets = {index.get(None, 0) + term for index in indices for term in range(terms)}
    if not offsets:
        return None  # the inner loop's extent is not constant
    first = min(offsets)
    chunk = next(n for n in itertools.count(1) if first + n not in offsets)
    return _TileData(buffer, start, offsets, chunk)


def _ask_for_later(loop: Any, body: _Body) -> Iterator[Any]:
    """Statements for each iteration that load the first line of each vector of large operands that a
    later iteration reads."""
    from tvm import tirx

    variable = loop.loop_var
    asked: list[tuple[Any, Index]] = []
    for buffer, index, _ in body.large_vectors():
        if index is None or not index.get(variable) or any(v in body.extents for v in index):
            continue
        later = {**index, None: index.get(None, 0) + LATER * index[variable]}
        if not any(buffer.same_as(other) and later == known for other, known in asked):
            asked.append((buffer, later))
            at = linear_indices.expression(later, variable.ty.dtype)
            yield tirx.Evaluate(_prefetch(buffer, at))


def _ask_for_lines(data: _TileData, kind: Any) -> Iterator[Any]:
    """Statements for each tile that load its lines of the chunk after this one."""
    from tvm import tirx

    values = LINE // data.buffer.dtype.itemsize
    for line in sorted({offset // values for offset in data.offsets}):
        index = linear_indices.expression({**data.start, None: line * values + data.chunk}, kind)
        yield tirx.Evaluate(_prefetch(data.buffer, index))


def _prefetch(buffer: Any, index: Any) -> Any:
    """A request for the line of this element."""
    from tvm import tirx

    place = tirx.address_of(tirx.BufferLoad(buffer, [index]))
    return tirx.call_llvm_intrin("void", "llvm.prefetch", place, *SECOND_LEVEL)


def bytes_of(buffer: Any) -> int:
    extents = [linear_indices.constant(extent) for extent in buffer.shape]
    return math.prod(n or 0 for n in extents) * buffer.dtype.itemsize
