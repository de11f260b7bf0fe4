"""Build, time and check a candidate on this machine's CPU; each function runs in a worker."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvmtune import threads as tvm_threads
from tvmtune.accuracy import relative_error
from tvmtune.types import TensorSpec, Timing

_block: Any = None


def build(mod: Any, target: dict[str, Any], options: dict[str, Any], directory: str) -> str:
    """Compile ``mod`` and link it into ``directory``; returns the library's path.

    ``options["linker"]`` is the command prefix of an ELF linker. TVM's objects need no C library,
    so the bare linker does (30 ms, where the compiler's driver takes 100).
    """
    import uuid

    import tvm
    from tvm.driver import build as tvm_build

    library = tvm_build(mod, target=tvm.target.Target(target))
    path = str(Path(directory) / f"{uuid.uuid4().hex}.so")

    def link(output: str, objects: Sequence[str], **_: Any) -> None:
        command = [*options["linker"], "-shared", "-o", output, *objects]
        subprocess.run(command, check=True, capture_output=True)

    library.export_library(path, fcompile=link)
    return path


def init(options: dict[str, Any]) -> None:
    """Called once in each run worker: the thread pool, each thread on a CPU of its own."""
    tvm_threads.settle(int(options["threads"]))


def run(
    artifact: str, args: Sequence[TensorSpec], timing: Timing, options: dict[str, Any]
) -> list[float]:
    """Seconds per call, one value per repeat.

    With ``timing.number == 1`` all arguments but the first are flushed from the caches before each
    repeat: inside a network the weights are cold, the activations warm. A candidate that is clearly
    slower than ``options["best"]`` (seconds) is given up after two repeats.
    """
    import tvm

    device = tvm.cpu(0)
    module = tvm.runtime.load_module(artifact)
    arrays = [tvm.runtime.tensor(_fill(spec), device) for spec in args]

    def measure(repeat: int) -> list[float]:
        evaluator = module.time_evaluator(
            "main",
            device,
            number=timing.number,
            repeat=repeat,
            min_repeat_ms=timing.min_repeat_ms,
            f_preproc="cache_flush_cpu_non_first_arg" if timing.number == 1 else "",
        )
        return [float(s) for s in evaluator(*arrays).results]

    probe = measure(min(2, timing.repeat))
    best = options.get("best")
    if timing.repeat <= 2 or (best and min(probe) > 1.5 * best):
        return probe
    return probe + measure(timing.repeat - len(probe))


def check(
    artifact: str, reference: str, args: Sequence[TensorSpec], options: dict[str, Any]
) -> float:
    """The worst of max|y - ref| / max|ref| over all arguments after both have run.

    Outputs are filled with NaN first, so that a kernel that writes nothing is wrong. The reference's
    results are kept beside its library: it is slow, and is asked again for the next leader.
    """
    cache = Path(reference).with_suffix(".npz")
    if cache.exists():
        with np.load(cache) as stored:
            expected = [stored[f"arr_{i}"] for i in range(len(args))]
    else:
        expected = _after(reference, args)
        np.savez(cache, *expected)
    worst = 0.0
    for got, want in zip(_after(artifact, args), expected, strict=True):
        worst = max(worst, relative_error(got, want))
    return worst


def _after(artifact: str, args: Sequence[TensorSpec]) -> list[np.ndarray]:
    import tvm

    module = tvm.runtime.load_module(artifact)
    arrays = []
    for index, spec in enumerate(args):
        values = _fill(spec, seed=index)
        if index == len(args) - 1 and values.dtype.kind == "f":
            values[...] = np.nan
        arrays.append(tvm.runtime.tensor(values, tvm.cpu(0)))
    module["main"](*arrays)
    return [array.numpy() for array in arrays]


def _fill(spec: TensorSpec, seed: int = 0) -> np.ndarray:
    """Standard-normal floats, or 0 and 1 for integers (a safe index anywhere).

    A block of 64 Ki values is repeated: drawing 46 MB of weights afresh would cost more than timing.
    """
    global _block
    if _block is None:
        _block = np.random.RandomState(0).standard_normal(65536 + 1021).astype("float32")
    count = int(np.prod(spec.shape, dtype=np.int64))
    if np.dtype(spec.dtype).kind == "f":
        # an odd period, so that no loop extent of a power of two sees the same values again
        period = _block[seed * 131 % 1000 : seed * 131 % 1000 + 65521]
        return np.resize(period, count).astype(spec.dtype).reshape(spec.shape)
    return (np.arange(count) % 2).astype(spec.dtype).reshape(spec.shape)
