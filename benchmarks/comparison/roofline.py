"""The machine's roofline, measured: peak float32 rate and memory bandwidth, and layers against it."""

from __future__ import annotations

import tempfile
from typing import Any

MEMORY = 4
"""Working set in multiples of the last-level cache, from which data comes from memory."""
LEAST, MOST = 256 << 20, 1 << 30
"""Bytes of the working set for memory. Clouds may report a cache that is shared with other machines."""
SMALLEST = 1 << 20
LANES = 64
STEPS = 256
"""A row has LANES x STEPS floats (64 KiB): one task of the thread pool."""


def measure(metadata: dict[str, Any], threads: int, weights: int) -> dict[str, float]:
    """Figures for ``threads`` threads, in the thread pool of this process.

    ``gflops``: the peak float32 rate. ``memory_gb_s``: bandwidth of reading from memory.
    ``weights_gb_s``: bandwidth of reading ``weights`` bytes again and again, which may stay in a cache:
    the bound of a network with so many bytes of weights. ``metadata``: that of a library for this CPU.
    """
    from tvmtune.measure import peak, specs
    from tvmtune.types import Device

    device = Device.from_json(metadata["device"])
    options = {**specs.builder(device).options, "threads": threads}
    large = min(MOST, max(LEAST, MEMORY * int(device.params.get("l3_bytes") or 0)))
    return {
        "gflops": peak.measure(device.target, options),
        "memory_gb_s": _bandwidth(device.target, options, large),
        "weights_gb_s": _bandwidth(device.target, options, max(SMALLEST, min(large, weights))),
    }


def _bandwidth(target: dict[str, Any], options: dict[str, Any], size: int) -> float:
    """GB/s of the best of several passes that sum an array of ``size`` bytes."""
    import numpy as np
    import tvm

    from tvmtune.measure import local

    rows = max(1, size // (4 * LANES * STEPS))
    with tempfile.TemporaryDirectory(prefix="bandwidth-") as folder:
        module = tvm.runtime.load_module(local.build(_sums(rows), target, options, folder))
        arrays = [
            tvm.runtime.tensor(np.ones((rows, STEPS, LANES), "float32")),
            tvm.runtime.tensor(np.zeros((rows, LANES), "float32")),
        ]
        timer = module.time_evaluator("main", tvm.cpu(0), number=1, repeat=10)
        seconds = min(timer(*arrays).results)
    return 4 * rows * STEPS * LANES / seconds / 1e9


def _sums(rows: int) -> Any:
    """Sums over the middle axis, with enough accumulators to hide the latency of additions."""
    import tvm
    from tvm import te
    from tvm.s_tir import Schedule

    a = te.placeholder((rows, STEPS, LANES), name="a")
    k = te.reduce_axis((0, STEPS), name="k")
    c = te.compute((rows, LANES), lambda i, j: te.sum(a[i, k, j], axis=k), name="c")
    sch = Schedule(tvm.IRModule({"main": te.create_prim_func([a, c])}))
    block = sch.get_sblock("c")
    store = sch.cache_write(block, 0, "local")
    i, j, steps = sch.get_loops(block)
    sch.reorder(i, steps, j)
    sch.reverse_compute_at(store, i)
    sch.parallel(i)
    outer, inner = sch.split(j, [None, 16])
    sch.unroll(outer)
    sch.vectorize(inner)
    sch.vectorize(sch.get_loops(store)[-1])
    sch.decompose_reduction(block, steps)
    return sch.mod


def layers(kernels: list[Any], metadata: dict[str, Any]) -> list[dict[str, Any]]:
    """The kernels of a profile with what they have to compute and to move, slowest first.

    ``gflop`` counts the direct algorithm, ``mb`` each input, weight and output once; both for all
    calls of a run. They are None for what is no task, such as the time between kernels.
    """
    tasks = {task["name"]: task for task in metadata["tasks"]["list"]}
    found = []
    for kernel in kernels:
        task = tasks.get(kernel.task)
        found.append(
            {
                "name": kernel.name,
                "task": task and task["name"],
                "calls": kernel.calls,
                "ms": kernel.ms,
                "gflop": task and task["flop"] * kernel.calls / 1e9,
                "mb": task and task["bytes"] * kernel.calls / 1e6,
            }
        )
    return found


def shares(layer: dict[str, Any], peak: dict[str, float]) -> tuple[float, float, float]:
    """A layer's share of the peak rate, its share of the bandwidth, and the milliseconds that it takes
    beyond the roofline."""
    compute = layer["gflop"] / peak["gflops"] * 1e3
    memory = layer["mb"] / peak["weights_gb_s"]
    ms = layer["ms"] or 1e-9
    return compute / ms, memory / ms, max(0.0, layer["ms"] - max(compute, memory))
