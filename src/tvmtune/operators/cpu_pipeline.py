"""The TensorIR pipeline for CPUs: TVM's default, with elementary functions in vectors, instructions for
bfloat16, products of tiles, and prefetches."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from tvmtune.operators import (
    bfloat16_rounding,
    dot_products,
    marked_loops,
    prefetch,
    skipped_iterations,
    tile_functions,
    tile_products,
    vector_math,
    vector_tails,
)

DEFAULT_PIPELINE = "default"
"""Name of TVM's own pipeline."""
PARTITIONED = "pragma_loop_partition_hint"
"""TVM's annotation of a loop that is to be split where a condition in it changes."""
PIPELINE = "tvmtune"
"""Name of the pipeline here; see :func:`register`."""


def pipeline_for(target: Mapping[str, Any]) -> str:
    """The name of the pipeline for this target: :data:`PIPELINE`, once registered, for CPUs."""
    if target["kind"] != "llvm":
        return DEFAULT_PIPELINE
    register()
    return PIPELINE


@functools.cache
def register() -> None:
    """Register :data:`PIPELINE` in this process; see :func:`tvmtune.operators.vector_math.register`."""
    from tvm.tirx import compilation_pipeline

    vector_math.register()
    compilation_pipeline.register_tir_pipeline(PIPELINE, _pipeline)


def _pipeline() -> Any:
    import tvm
    from tvm.tirx import compilation_pipeline

    passes, finalize_host, finalize_device = compilation_pipeline.get_tir_pipeline(DEFAULT_PIPELINE)

    @tvm.transform.module_pass(opt_level=0, name="tvmtune.FinalizeHost")
    def finalize(mod: Any, context: Any) -> Any:
        with vector_math.active():
            return _complete()(finalize_host()(mod))

    @tvm.transform.module_pass(opt_level=0, name="tvmtune.LowerForCPU")
    def lower(mod: Any, context: Any) -> Any:
        rewritten = rewrite_loops(mod)
        if rewritten is mod:
            return passes(mod)
        # It was done, and on flat buffers it fails: a constant ramp, as a tile of one vector has, is
        # taken for one place.
        without_it = tvm.transform.PassContext(
            context.opt_level,
            context.required_pass,
            [*context.disabled_pass, "s_tir.CompactBufferAllocation"],
            context.instruments,
            dict(context.config),
        )
        with without_it:
            return passes(rewritten)

    return lower, lambda: finalize, finalize_device


def rewrite_loops(mod: Any) -> Any:
    """Flatten buffers, then replace marked loops by calls, split the tails of vectorized loops, skip
    iterations, and split :data:`PARTITIONED` loops.

    Each of these comes after flattening, because TVM needs the loops' reads and writes to place
    buffers. A module without any is returned as it is.
    """
    import tvm
    from tvm import s_tir, tirx

    functions = [each for each in mod.functions.values() if isinstance(each, tirx.PrimFunc)]
    is_partitioned = any(marked_loops.exist(each, PARTITIONED) for each in functions)
    marks = (tile_products.MARK, skipped_iterations.ONLY_IF)
    if not is_partitioned and not any(
        vector_tails.has_tails(each) or any(marked_loops.exist(each, mark) for mark in marks)
        for each in functions
    ):
        return mod
    rewrites = {
        "TileProducts": tile_products.with_calls,
        "VectorTails": vector_tails.with_parts,
        "SkippedIterations": skipped_iterations.with_conditions,
    }
    flatten = [
        s_tir.transform.CanonicalizeLoop(),
        s_tir.transform.LowerCrossThreadReduction(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        # Otherwise the sums of a tile whose rows are pixels of several lines get a buffer for all rows.
        s_tir.transform.StmtSimplify(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.LowerMatchBuffer(),
        s_tir.transform.StmtSimplify(),
        s_tir.transform.LowerOpaqueBlock(),
        tirx.transform.FlattenBuffer(),
    ]
    for name, rewrite in rewrites.items():
        flatten.append(tirx.transform.prim_func_pass(rewrite, opt_level=0, name=f"tvmtune.{name}"))
    if is_partitioned:
        # TVM's pipeline does so, too, but after a pass that renames loops and not their annotations.
        flatten += [s_tir.transform.LoopPartition(), s_tir.transform.StmtSimplify()]
    return tvm.ir.transform.Sequential(flatten)(mod)


def _complete() -> Any:
    from tvm import tirx

    def complete(func: Any, mod: Any, context: Any) -> Any:
        return prefetch.insert(_with_functions(bfloat16_rounding.insert(func)))

    return tirx.transform.prim_func_pass(complete, opt_level=0, name="tvmtune.CompleteForCPU")


def _with_functions(func: Any) -> Any:
    """The lowered PrimFunc, with the definitions of our functions that it calls."""
    from tvm import ir, tirx
    from tvm_ffi import structural_walk

    texts: list[Any] = []
    structural_walk(func.body, (ir.StringImm, texts.append))
    called = {str(text.value) for text in texts}
    code = [
        *vector_math.definitions(called),
        *dot_products.definitions(called),
        *bfloat16_rounding.definitions(called),
        *tile_functions.definitions(called),
    ]
    if not code:
        return func
    imported = ir.StringImm("\n".join(code))
    zero = tirx.const(0, "int32")
    return func.with_body(tirx.AttrStmt(zero, "pragma_import_llvm", imported, func.body))
