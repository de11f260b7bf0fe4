"""Loops that a schedule marks become calls of the function in ``mma_tiles.cuh``.

The marked loops stay plain loops while a kernel is scheduled and its buffers get their places, so that
TVM knows what they read and write. The function computes them with all threads of the block.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from tvmtune.errors import TvmtuneError
from tvmtune.operators import marked_loops
from tvmtune.operators.gemm import GATHER, Gather
from tvmtune.passes.precision import HALF_DTYPES

ROWS, COLUMNS, TERMS, THREADS = (
    "tvmtune.rows",
    "tvmtune.columns",
    "tvmtune.terms",
    "tvmtune.threads",
)
"""Annotations of the outermost of the marked loops (pixels, channels, terms): a tile's extents, and the
threads of a block."""
EARLIEST = 80
"""The first architecture with these instructions."""
_SHARED = 96 << 10
"""Bytes of shared memory that a block may ask for, on every GPU with these instructions."""
_MOST_STAGES = 6
_PADDING = 8
"""Elements by which a row of a tile is longer."""
_NAMESPACE = "tvmtune::"
_HEADER = Path(__file__).with_suffix(".cuh")


@dataclass(frozen=True)
class Tile:
    """How a thread block computes its tile."""

    rows: int
    columns: int
    terms: int
    stages: int
    warp_rows: int
    warp_columns: int

    @classmethod
    def of(cls, rows: int, columns: int, terms: int, threads: int, length: int) -> Tile | None:
        """With as many stages as shared memory has room for, and tiles of warps as square as possible.
        ``length``: terms in a sum. None if it does not fit."""
        warps = threads // 32
        grids = [
            (high, warps // high)
            for high in range(1, warps + 1)
            if warps % high == 0
            and rows % (16 * high) == 0
            and columns % (16 * (warps // high)) == 0
        ]
        stages = min(_SHARED // _stage(rows, columns, terms), _MOST_STAGES, 1 + -(-length // terms))
        if not grids or stages < 2:
            return None
        high, wide = min(grids, key=lambda grid: abs(rows // grid[0] - columns // grid[1]))
        return cls(rows, columns, terms, stages, high, wide)

    @property
    def bytes(self) -> int:
        """Of shared memory: for tiles of operands, or for the sums after them."""
        operands = self.stages * _stage(self.rows, self.columns, self.terms)
        return max(operands, 4 * self.rows * self.columns)


def _stage(rows: int, columns: int, terms: int) -> int:
    """Bytes of one tile of each operand."""
    return 2 * (rows * (terms + _PADDING) + terms * (columns + _PADDING))


def architecture(name: str) -> int:
    """The number of an architecture: 90 of ``sm_90a``."""
    return int("".join(filter(str.isdigit, name)))


def insert(mod: Any) -> Any:
    """A module in which calls replace the marked loops.

    Raises :class:`TvmtuneError` if they are not what the function computes.
    """
    import tvm
    from tvm import s_tir, tirx

    if not any(_is_marked(func) for func in mod.functions.values()):
        return mod
    steps = [
        tirx.transform.prim_func_pass(_describe, opt_level=0, name="tvmtune.DescribeTiles"),
        s_tir.transform.CanonicalizeLoop(),
        s_tir.transform.LowerCrossThreadReduction(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.LiftThreadBinding(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.UnifyThreadBinding(),
        s_tir.transform.LowerMatchBuffer(),
        s_tir.transform.StmtSimplify(),
        s_tir.transform.LowerOpaqueBlock(),
        tirx.transform.FlattenBuffer(),
        tirx.transform.prim_func_pass(_with_calls, opt_level=0, name="tvmtune.MmaTiles"),
    ]
    marked = tvm.IRModule({g: f for g, f in mod.functions_items() if _is_marked(f)})
    changed = tvm.ir.transform.Sequential(steps)(marked)
    result = mod.clone()
    for name, func in changed.functions_items():
        result.update_func(name, func)
    return result


def with_functions(source: str) -> str:
    """CUDA C++ with the definitions of the functions that it calls."""
    return _HEADER.read_text() + source if _NAMESPACE in source else source


def _is_marked(func: Any) -> bool:
    from tvm import tirx

    return isinstance(func, tirx.PrimFunc) and marked_loops.exist(func, THREADS)


def _describe(func: Any, mod: Any, context: Any) -> Any:
    """Copy what the product's block says of its data to the marked loop: blocks are about to go."""
    from tvm import s_tir, tirx
    from tvm_ffi import structural_mutate, structural_walk

    def visit(loop: Any, mutator: Any) -> Any:
        if THREADS not in loop.annotations:
            return mutator.default_mutate(loop)
        found: list[Any] = []
        structural_walk(
            loop.body, (s_tir.SBlock, lambda block: found.append(block.annotations.get(GATHER)))
        )
        (gather,) = (each for each in found if each is not None)
        return tirx.For(
            *(loop.loop_var, loop.min, loop.extent, loop.kind, loop.body),
            annotations={**loop.annotations, GATHER: gather},
        )

    return func.with_body(structural_mutate(func.body, (tirx.For, visit)))


def _with_calls(func: Any, mod: Any, context: Any) -> Any:
    from tvm import tirx
    from tvm_ffi import structural_mutate

    sums: list[tuple[Any, int]] = []

    def visit(loop: Any, mutator: Any) -> Any:
        if THREADS not in loop.annotations:
            return mutator.default_mutate(loop)
        call, buffer, size = _call(loop)
        sums.append((buffer, size))
        return tirx.Evaluate(call)

    def enlarge(statement: Any, mutator: Any) -> Any:
        for buffer, size in sums:
            if statement.buffer.same_as(buffer):
                larger = tirx.decl_buffer(
                    (size // 4,), "float32", str(buffer.name), scope="shared.dyn", layout=None
                )
                mutator.var_remap_set(buffer, larger)
                return tirx.AllocBuffer(larger, annotations=statement.annotations)
        return mutator.default_mutate(statement)

    body = structural_mutate(func.body, (tirx.For, visit))
    return func.with_body(structural_mutate(body, (tirx.AllocBuffer, enlarge)))


def _call(outermost: Any) -> tuple[Any, Any, int]:
    """The call that does what the loops do, the buffer of its sums, and how many bytes that needs."""
    from tvm import tirx

    notes = outermost.annotations
    rows, columns, terms, threads = (int(notes[name]) for name in (ROWS, COLUMNS, TERMS, THREADS))
    gather = Gather(*map(int, notes[GATHER]))
    extents, store = _nest(outermost)
    if extents[:2] != [rows, columns] or len(extents) != 3:
        raise TvmtuneError(f"not a tile of {rows}x{columns} sums: loops of {extents}")
    data, weights = _factors(store)
    tile = Tile.of(rows, columns, terms, threads, extents[2])
    if tile is None:
        raise TvmtuneError(f"no tile of {rows}x{columns}x{terms} for {threads} threads")
    read = gather.images * gather.height * gather.width * gather.depth
    dtypes = str(data.dtype), str(weights.dtype), str(store.buffer.dtype)
    if dtypes not in [(half, half, "float32") for half in HALF_DTYPES]:
        raise TvmtuneError(f"the function does not multiply {dtypes[0]} and add {dtypes[2]}")
    if [int(n) for n in data.shape] != [read]:
        raise TvmtuneError(f"{data.name} is not the data of the convolution")
    numbers = [*astuple(tile), extents[2], gather.channels, *astuple(gather)[:-1]]
    bfloat16 = "true" if str(data.dtype) == "bfloat16" else "false"
    name = f"{_NAMESPACE}convolution_tile<{bfloat16}, {', '.join(map(str, numbers))}>"
    # TVM shrinks a buffer to what it sees used of it: the call names its last element, too.
    places = (store.buffer, 0), (store.buffer, tile.bytes // 4 - 1), (data, 0), (weights, 0)
    pointers = [tirx.address_of(tirx.BufferLoad(buffer, [place])) for buffer, place in places]
    return tirx.call_extern("int32", name, *pointers), store.buffer, tile.bytes


def _nest(statement: Any) -> tuple[list[int], Any]:
    """The extents of nested loops, and the innermost store; sums begin with a store of zero."""
    from tvm import tirx

    extents = []
    while not isinstance(statement, tirx.BufferStore):
        if isinstance(statement, tirx.For):
            extents.append(int(statement.extent))
            statement = statement.body
        elif isinstance(statement, tirx.SeqStmt):
            statement = statement.seq[-1]
        else:
            raise TvmtuneError(f"unexpected {type(statement).__name__} in a tile's loops")
    return extents, statement


def _factors(store: Any) -> tuple[Any, Any]:
    """The buffers whose elements' product is added to what is stored: data and weights."""
    from tvm import tirx
    from tvm.ir import TensorLoad
    from tvm_ffi import structural_walk

    found: list[Any] = []
    if isinstance(store.value, tirx.Add) and isinstance(store.value.b, tirx.Mul):
        for factor in (store.value.b.a, store.value.b.b):
            structural_walk(factor, (TensorLoad, lambda load: found.append(load.source)))
    if len(found) != 2:
        raise TvmtuneError(f"not a sum of products of two operands: {store}")
    data, weights = found
    return data, weights
