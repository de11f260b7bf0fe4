"""Schedules of convolutions whose tiles are computed by the function in ``mma_tiles.cuh``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tvmtune.operators import gemm
from tvmtune.operators.gemm import GATHER
from tvmtune.operators.implementations import IMPLICIT_GEMM
from tvmtune.passes.blocks import blocks
from tvmtune.passes.precision import HALF_DTYPES
from tvmtune.spaces import tensor_intrinsics
from tvmtune.spaces.rule_space import replay, tune_context
from tvmtune.types import Algorithm, Device, product
from tvmtune_cuda import mma_tiles
from tvmtune_cuda.mma_tiles import Tile, architecture

if TYPE_CHECKING:
    import tvm
    from tvm.s_tir import Schedule
    from tvm.s_tir.meta_schedule.space_generator import SpaceGenerator

MULTIPLE = 64
"""The number of pixels is rounded up to a multiple of this."""
_ROWS, _COLUMNS, _TERMS = (32, 64, 128), (32, 64, 128), (16, 32, 64)
_THREADS = (64, 128, 256)
_LANES = 4
"""Outputs that a thread writes at once: 16 bytes of float32."""
_SUMMING = 128
"""Threads per block of the kernel that adds parts of sums."""
_FEWEST_ROWS = 16
"""Of a product: a matrix-vector product is bound by loading its weights."""
_USUAL_SHARED = 48 << 10
"""Bytes of shared memory per block of every GPU, unless a target's limit is lowered."""
_LONG, _FEW_TILES = 512, 40
"""Terms in a sum and tiles of 64x64 sums: where parts of sums are faster on an H100. With 576 terms and
26 tiles 7.3 us instead of 8.1, but 8.2 instead of 6.2 with 49 tiles, and 7.8 instead of 4.9 with 256
terms; with 4,608 terms and 8 tiles 8.6 instead of 41."""


def algorithms(device: Device) -> list[Algorithm]:
    """Split-K and implicit GEMM with these schedules, if the device has the instructions and its limits
    are not lowered. They are preferred to whatever else computes a convolution, split-K where sums are
    long and tiles few."""
    target = device.target
    if (
        architecture(str(target["arch"])) < mma_tiles.EARLIEST
        or target["max_threads_per_block"] < max(_THREADS)
        or target["max_shared_memory_per_block"] < _USUAL_SHARED
    ):
        return []
    convolution: dict[str, Any] = {"rows": MULTIPLE, "annotate": True}
    whole: dict[str, Any] = {"rows": MULTIPLE}
    split = {**whole, "split": True}
    conv2d, matmul = IMPLICIT_GEMM.operator, "relax.matmul"
    return [
        Algorithm(
            name,
            operator,
            applies=functools.partial(_applies, applies),
            replace=functools.partial(program, **options),
            prefers=_prefers_parts if "split" in name else lambda call: True,
            space_for=lambda mod: space(mod, target),
        )
        for name, operator, applies, program, options in (
            ("split-k-mma", conv2d, gemm.splits, gemm.replace_split, convolution),
            ("implicit-gemm-mma", conv2d, gemm.applies, gemm.replace, convolution),
            ("matmul-split-k-mma", matmul, gemm.splits_matmul, gemm.replace_matmul, split),
            ("matmul-mma", matmul, gemm.applies_to_matmul, gemm.replace_matmul, whole),
        )
    ]


def _applies(applies: Callable[[Any], bool], call: Any) -> bool:
    if not applies(call):
        return False
    data, weights = (arg.ty for arg in call.args)
    *rows, columns = (int(extent) for extent in call.ty.shape)
    return (
        (len(weights.shape) == 2 or str(call.attrs.data_layout) == "NHWC")
        and str(data.dtype) in HALF_DTYPES
        and str(call.ty.dtype) == "float32"
        and product(rows) >= _FEWEST_ROWS
        and columns % min(_COLUMNS) == 0
        and product([int(extent) for extent in data.shape]) < 1 << 31
    )


def _prefers_parts(call: Any) -> bool:
    *pixels, channels = (int(extent) for extent in call.ty.shape)
    tiles = -(-product(pixels) // MULTIPLE) * -(-channels // MULTIPLE)
    *terms, _ = (int(extent) for extent in call.args[1].ty.shape)
    return product(terms) >= _LONG and tiles < _FEW_TILES


class MmaSpace:
    """Tiles of a product with :data:`~tvmtune.operators.gemm.GATHER` in shared memory, whose epilogue
    is in the same kernel. Parts of sums are added by a second kernel, which then has the epilogue."""

    size: int | None = len(_ROWS) * len(_COLUMNS) * len(_TERMS) * len(_THREADS)

    def __init__(self, target: dict[str, Any]) -> None:
        self.target = target

    def generator(self) -> SpaceGenerator:
        from tvm.s_tir.meta_schedule.space_generator import ScheduleFn

        tensor_intrinsics.load_for("cuda")
        return ScheduleFn(_schedule, sch_rules=[], postprocs=[_fitting()])

    def default(self, mod: tvm.IRModule, target: tvm.target.Target) -> Schedule:
        """The first of the preferred tiles that fits. Raises StopIteration if none does."""
        context = tune_context(mod, target, self.generator(), seed=1)
        postprocs = list(context.space_generator.postprocs)
        (design,) = context.generate_design_space()
        made = (replay(mod, trace, postprocs) for trace in _preferred(design.trace, mod))
        return next(sch for sch in made if sch is not None)


def space(mod: tvm.IRModule, target: dict[str, Any]) -> MmaSpace | None:
    """The space for a workload; None if it is no convolution of an argument that the function can
    read, or what follows it cannot be computed tile by tile."""
    import tvm

    made = MmaSpace(target)
    try:
        made.default(mod, tvm.target.Target(target))
    except Exception:  # TVM raises several unrelated types for blocks that cannot be inlined
        return None
    return made


def _preferred(trace: Any, mod: tvm.IRModule) -> Iterator[Any]:
    parts, _, _, length = (int(axis.dom.extent) for axis in _product(mod).iter_vars)
    wanted = [(64, 64, 32, 128), (64, 32, 32, 128), (32, 32, 32, 64), (64, 64, 16, 128)]
    if parts == 1 and length >= _LONG:  # 6.2 instead of 8.1 us on an H100
        wanted.insert(0, (32, 64, 64, 256))
    samples = [i for i in trace.insts if i.kind.name == "SampleCategorical"]
    for values in wanted:
        decided = trace
        options = (_ROWS, _COLUMNS, _TERMS, _THREADS)
        for inst, candidates, value in zip(samples, options, values, strict=True):
            decided = decided.with_decision(inst, candidates.index(value), remove_postproc=True)
        yield decided


def _product(mod: tvm.IRModule) -> Any:
    """The block of the sums."""
    return next(each for each in blocks(mod["main"]) if GATHER in each.annotations)


def _schedule(sch: Schedule) -> None:
    """Draws a tile and marks the product's loops. Raises ValueError, or whatever TVM raises, for other
    kernels than a convolution of arguments and its epilogue."""
    patches, sums, output = sch.get_sblock("patches"), sch.get_sblock("product"), _output(sch)
    if sch.get_producers(patches) or len(sch.get_producers(sums)) != 1:
        raise ValueError("the function reads its operands from memory")
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        if not any(sch.get(block).same_as(sch.get(kept)) for kept in (sums, output)):
            sch.compute_inline(block)
    rows, columns, terms, threads = (
        sch.sample_categorical(list(values), [1 / len(values)] * len(values))
        for values in (_ROWS, _COLUMNS, _TERMS, _THREADS)
    )
    if int(sch.get(sums).iter_vars[0].dom.extent) > 1:
        _bind(sch, output, _SUMMING)
        store = sch.cache_write(sums, 0, "shared.dyn")
    else:
        sch.set_scope(sums, 0, "shared.dyn")
        store = output
        _flatten(sch, output)
    part, pixel, channel, _ = sch.get_loops(sums)
    upper, row = sch.split(pixel, [None, rows])
    left, column = sch.split(channel, [None, columns])
    sch.reorder(upper, left, row, column)
    for loop, axis in ((part, "z"), (upper, "y"), (left, "x")):
        sch.bind(loop, f"blockIdx.{axis}")
    sch.reverse_compute_at(store, left)
    *_, written_row, written_column = sch.get_loops(store)
    fused = sch.fuse(written_row, written_column)
    _, thread, lane = sch.split(fused, [None, threads, _LANES])
    sch.bind(thread, "threadIdx.x")
    sch.vectorize(lane)
    for name, value in (
        *((mma_tiles.ROWS, rows), (mma_tiles.COLUMNS, columns)),
        *((mma_tiles.TERMS, terms), (mma_tiles.THREADS, threads)),
    ):
        sch.annotate(row, name, value)


def _flatten(sch: Schedule, block: Any) -> None:
    """Make one axis of all but the last, as the product has it."""
    from tvm.tirx import IndexMap

    extents = [int(axis.dom.extent) for axis in sch.get(block).iter_vars]

    def flat(*axes: Any) -> tuple[Any, Any]:
        row = axes[0]
        for axis, extent in zip(axes[1:-1], extents[1:-1], strict=True):
            row = row * extent + axis
        return row, axes[-1]

    index_map = IndexMap.from_func(flat, ndim=len(extents), index_dtype="int64")
    sch.transform_block_layout(block, index_map)


def _output(sch: Schedule) -> Any:
    """The block that no other one reads."""
    (found,) = (
        block
        for block in sch.get_child_blocks(sch.get_sblock("root"))
        if not sch.get_consumers(block)
    )
    return found


def _bind(sch: Schedule, block: Any, threads: int) -> None:
    fused = sch.fuse(*sch.get_loops(block))
    blocks_, thread, lane = sch.split(fused, [None, threads, _LANES])
    sch.bind(blocks_, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    sch.vectorize(lane)


def _fitting() -> Any:
    """A post-processor that rejects tiles that no thread block computes."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.postproc import PyPostproc

    @derived_object
    class Fitting(PyPostproc):
        def _initialize_with_tune_context(self, context: Any) -> None:
            pass

        def apply(self, sch: Any) -> bool:
            return _fits(sch.mod)

        def clone(self) -> Any:
            return _fitting()

    return Fitting()


def _fits(mod: tvm.IRModule) -> bool:
    from tvm import tirx
    from tvm_ffi import structural_walk

    marked: list[Any] = []

    def look(loop: Any) -> None:
        if mma_tiles.THREADS in loop.annotations:
            marked.append(loop)

    structural_walk(mod["main"].body, (tirx.For, look))
    parts, pixels, channels, length = (int(axis.dom.extent) for axis in _product(mod).iter_vars)
    rows, columns, terms, threads = (
        int(marked[0].annotations[name])
        for name in (mma_tiles.ROWS, mma_tiles.COLUMNS, mma_tiles.TERMS, mma_tiles.THREADS)
    )
    return (
        pixels % rows == 0
        and channels % columns == 0
        and rows * columns % (threads * _LANES) == 0
        and (parts == 1 or length % 8 == 0)
        and Tile.of(rows, columns, terms, threads, length) is not None
    )
