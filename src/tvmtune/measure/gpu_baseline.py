"""Detect changes of a GPU's speed with a kernel that never changes. Runs in a run worker.

Each thread multiplies and adds in registers; its few operands stay in the nearest cache. So the
kernel's time depends on the clock frequency alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tvmtune.measure import local

THREADS = 1 << 12
DEPTH = 1 << 12
"""Number of threads, and sequential steps of each: long enough for a large GPU, which runs all
threads at once, and short enough for a CPU that emulates one."""
GROUP = 64
LEAST_MS = 1
"""Minimum duration of one timer reading, in milliseconds."""
READINGS = 5

_loaded: Any = None
"""The device, the loaded kernel and its arguments."""


def baseline(
    target: dict[str, Any],
    options: dict[str, Any],
    build: Callable[..., str] = local.build,
) -> float:
    """Median seconds of a call.

    ``build`` is as :func:`tvmtune.measure.local.build`. The kernel stays loaded and its library stays
    in ``options["directory"]``, so a later call costs only the kernel's run time.
    """
    global _loaded
    first = _loaded is None
    if first:
        _loaded = _load(target, options, build)
    device, module, arrays = _loaded
    timer = module.time_evaluator("main", device, number=1, repeat=READINGS, min_repeat_ms=LEAST_MS)
    if first:  # an idle device is slow at first
        timer(*arrays)
    return statistics.median(timer(*arrays).results)


def _load(
    target: dict[str, Any], options: dict[str, Any], build: Callable[..., str]
) -> tuple[Any, Any, Any]:
    import numpy as np
    import tvm

    kept = Path(options["directory"]) / "baseline.so"
    if not kept.exists():
        group = min(GROUP, int(target["max_threads_per_block"]))
        Path(build(kernel(group), target, options, options["directory"])).replace(kept)
    device, module = local.load(str(kept), options)
    shapes = (THREADS,), (DEPTH,), (THREADS,)
    arrays = [tvm.runtime.tensor(np.ones(shape, "float32"), device) for shape in shapes]
    return device, module, arrays


def kernel(group: int) -> Any:
    """The kernel with ``group`` threads per block."""
    import tvm
    from tvm import te
    from tvm.s_tir import Schedule

    a, b = (te.placeholder((n,), name=name) for n, name in ((THREADS, "a"), (DEPTH, "b")))
    k = te.reduce_axis((0, DEPTH), name="k")
    c = te.compute((THREADS,), lambda i: te.sum(a[i] * b[k], axis=k), name="c")
    sch = Schedule(tvm.IRModule({"main": te.create_prim_func([a, b, c])}))
    block = sch.get_sblock("c")
    store = sch.cache_write(block, 0, "local")
    i, depth = sch.get_loops(block)
    blocks, threads = sch.split(i, [None, group])
    sch.bind(blocks, "blockIdx.x")
    sch.bind(threads, "threadIdx.x")
    sch.reverse_compute_at(store, threads)
    sch.decompose_reduction(block, depth)
    return sch.mod
