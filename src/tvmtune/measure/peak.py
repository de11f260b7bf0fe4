"""Measure a CPU's peak float32 rate, the reference for "share of peak".

Every thread updates a block of accumulators in vector registers from operands in the L1 cache, so
that it executes little but float32 multiply-adds. Runs in a run worker.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from tvmtune.cpu_features import VectorUnit, vector_unit
from tvmtune.machine.clock_steps import without_step
from tvmtune.measure import local

VECTORS = 2
"""In each row of accumulators."""
DEPTH = 128
BLOCKS = 512
"""Independent blocks per thread, enough to make the dispatch of work negligible."""

_baseline: Any = None


def measure(target: dict[str, Any], options: dict[str, Any]) -> float:
    """Best of several runs, in GFLOPS over ``options["threads"]`` threads."""
    import tvm

    with tempfile.TemporaryDirectory(prefix="peak-", dir=options.get("directory")) as folder:
        module, arrays, flop = _load(target, options, folder)
        timer = module.time_evaluator("main", tvm.cpu(0), number=1, repeat=40)
        seconds = min(without_step(lambda: timer(*arrays)).results)
    return flop / seconds / 1e9


def baseline(target: dict[str, Any], options: dict[str, Any]) -> float:
    """Median seconds of the same kernel, measured over some 20 ms.

    The kernel stays loaded and its library stays in ``options["directory"]``, so a later call costs
    only the kernel's run time.
    """
    import statistics

    import tvm

    global _baseline
    if _baseline is None:
        _baseline = _load(target, options, options["directory"], keep="baseline.so")
    module, arrays, _ = _baseline
    timer = module.time_evaluator("main", tvm.cpu(0), number=1, repeat=80)
    return statistics.median(without_step(lambda: timer(*arrays)).results[20:])


def _load(
    target: dict[str, Any], options: dict[str, Any], folder: str, keep: str | None = None
) -> tuple[Any, Any, float]:
    """The loaded kernel, its arguments and its operation count; the library is kept as ``keep``."""
    import numpy as np
    import tvm

    threads = int(options["threads"])
    unit = vector_unit(target)
    rows, columns = _tile(unit)
    blocks = BLOCKS * threads
    kept = Path(folder) / keep if keep else None
    if kept is None or not kept.exists():
        path = local.build(kernel(unit, blocks), target, options, folder)
        kept = Path(path).rename(kept or path)
    module = tvm.runtime.load_module(str(kept))
    arrays = [
        tvm.runtime.tensor(np.ones(shape, "float32"))
        for shape in ((DEPTH, rows), (DEPTH, columns), (blocks, rows, columns))
    ]
    return module, arrays, 2.0 * blocks * rows * columns * DEPTH


def _tile(unit: VectorUnit) -> tuple[int, int]:
    """Rows and columns of sums that fill the registers."""
    return unit.sums // VECTORS, unit.lanes * VECTORS


def kernel(unit: VectorUnit, blocks: int) -> Any:
    """The module: arguments (DEPTH, rows), (DEPTH, columns) and (blocks, rows, columns)."""
    import tvm
    from tvm import te
    from tvm.s_tir import Schedule

    rows, columns = _tile(unit)
    a = te.placeholder((DEPTH, rows), name="a")
    b = te.placeholder((DEPTH, columns), name="b")
    k = te.reduce_axis((0, DEPTH), name="k")
    c = te.compute(
        (blocks, rows, columns), lambda t, i, j: te.sum(a[k, i] * b[k, j], axis=k), name="c"
    )
    sch = Schedule(tvm.IRModule({"main": te.create_prim_func([a, b, c])}))
    block = sch.get_sblock("c")
    store = sch.cache_write(block, 0, "local")
    t, i, j, depth = sch.get_loops(block)
    sch.reorder(t, depth, i, j)
    sch.reverse_compute_at(store, t)
    sch.parallel(t)
    sch.unroll(i)
    sch.vectorize(j)
    sch.vectorize(sch.get_loops(store)[-1])
    sch.unroll(sch.get_loops(store)[-2])
    init = sch.decompose_reduction(block, depth)
    sch.unroll(sch.get_loops(init)[-2])
    sch.vectorize(sch.get_loops(init)[-1])
    return sch.mod
