"""Build, time and check a candidate on this machine; each function runs in a worker."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvmtune.arrays import aligned, nbytes, numpy_dtype
from tvmtune.machine import threads as tvm_threads
from tvmtune.machine.clock_steps import without_step
from tvmtune.measure import check_data, streamed_weights
from tvmtune.measure.comparison import Run, Values, stored_reference, worst_error
from tvmtune.measure.guarded import GuardedArguments, OutOfBounds
from tvmtune.operators import cpu_pipeline
from tvmtune.test_data import fill
from tvmtune.types import TensorSpec, Timing, product

PASSES: dict[str, Any] = {
    "config": {"tirx.disable_assert": True, "tirx.disable_cse_tir": True},
    "disabled_pass": ["tirx.RemoveNoOp", "s_tir.HoistIfThenElse"],
}
"""Disabled for candidates: argument checks, which are half of the object code, and passes that take a
third of TVM's share of the build and whose work LLVM does again. Kernels are equally fast: over 48
kernels of ResNet-18 the ratio has a median of 1.000 and lies between 0.99 and 1.01 for eight in ten."""

LLVM = ("-dag-maps-huge-region:uint=100", "-dag-maps-reduction-size:uint=50")
"""Number of consecutive memory accesses above which LLVM's scheduler stops comparing all pairs. With
its default of 1000, scheduling takes up to half of the build of an unrolled kernel."""

FLUSH = "cache_flush_cpu_non_first_arg"
"""TVM's function that flushes all arguments but the first from a CPU's caches."""

ABORT_AFTER_RUNS_RATIO = 3.0
ABORT_AFTER_REPEATS_RATIO = 1.5
"""A candidate is dropped if it is this many times slower than the best: after its first two runs
(``ABORT_AFTER_RUNS_RATIO``), or after two repeats (``ABORT_AFTER_REPEATS_RATIO``)."""
MIN_ABORTABLE_SECONDS = 1e-3
"""Seconds. Shorter runs are not worth skipping."""
LONG_MEASUREMENT = 0.05
"""Seconds. If the remaining repeats take longer, half of the repeats suffice if their times agree."""
MAX_RELATIVE_IQR = 0.01
"""Times agree if their interquartile range is below this share of their median."""

_arguments: Arguments | None = None
"""In a run worker: the arguments of candidates."""


def build(
    mod: Any,
    target: dict[str, Any],
    options: dict[str, Any],
    directory: str,
    pack: Callable[..., str] | None = None,
) -> str:
    """Compile ``mod`` and link it into ``directory``; returns the library's path.

    Uses :data:`PASSES` and :data:`LLVM`, or TVM's defaults if ``options["shipped"]`` is set.
    ``options["linker"]`` is the command prefix of an ELF linker: TVM's objects need no C library, so
    the linker alone suffices (5 ms, where the compiler driver takes 50). ``options["config"]`` is for
    TVM's PassContext in either case. With ``options["reference"]``, exp and its like are those of the
    C library. ``pack`` writes everything but the CPU's machine code, as ``fpack_imports`` of TVM's
    ``export_library``.
    """
    import uuid

    import tvm

    passes: dict[str, Any] = {"config": options.get("config", {})}
    if not options.get("shipped"):
        passes = {**PASSES, "config": {**PASSES["config"], **passes["config"]}}
        if target["kind"] == "llvm":
            target = {**target, "cl-opt": [*target.get("cl-opt", ()), *LLVM]}
    pipeline = cpu_pipeline.DEFAULT_PIPELINE
    if not options.get("reference"):
        pipeline = cpu_pipeline.pipeline_for(target)
    with tvm.transform.PassContext(**passes):
        library = tvm.compile(mod, tvm.target.Target(target), tir_pipeline=pipeline)
    path = str(Path(directory) / f"{uuid.uuid4().hex}.so")

    def link(output: str, objects: Sequence[str], **_: Any) -> None:
        command = [*options["linker"], "-shared", "-o", output, *objects]
        subprocess.run(command, check=True, capture_output=True)

    library.export_library(path, fcompile=link, fpack_imports=pack)
    return path


def init(options: dict[str, Any]) -> None:
    """Called once in each run worker: set up the thread pool, one CPU per thread."""
    tvm_threads.bind_pool(int(options["threads"]))


def run(
    artifact: str, args: Sequence[TensorSpec], timing: Timing, options: dict[str, Any]
) -> list[float]:
    """Seconds per call, one value per repeat.

    With ``timing.number == 1`` TVM's function ``options["flush"]``, if there is one, is called with
    the arguments before each repeat. On a CPU it flushes all but the first from the caches, because
    inside a network the weights are cold and the activations warm. Large weights are streamed instead
    (:mod:`tvmtune.measure.streamed_weights`). A candidate that is clearly slower than
    ``options["best"]`` (seconds) is dropped after its first two runs, of which the faster is returned,
    or after two repeats; a slow one ends once its times agree.

    ``options["device"]``: TVM's name of the device that runs the kernels, a CPU by default.
    """
    device, module = load(artifact, options)
    on_cpu = _on_cpu(options)
    global _arguments
    _arguments = _arguments or Arguments(device)
    arrays = _arguments.of(args)
    best = options.get("best")
    flush = options.get("flush", "") if timing.number == 1 else ""
    copies = 0
    if flush and on_cpu and not timing.min_repeat_ms:
        copies = streamed_weights.copies(args, int(options.get("threads", 1)))

    def run_once() -> float:
        if not on_cpu:  # the first run may include its compilation, which TVM's timer excludes
            return timed(1, number=1)[0]
        began = time.perf_counter()
        module["main"](*arrays)
        return time.perf_counter() - began

    def timed(repeat: int, **how: Any) -> list[float]:
        evaluator = module.time_evaluator("main", device, repeat=repeat, **how)
        return [float(s) for s in without_step(lambda: evaluator(*arrays)).results]

    def measure(repeat: int) -> list[float]:
        return timed(
            repeat,
            number=timing.number,
            min_repeat_ms=timing.min_repeat_ms,
            f_preproc=flush,
        )

    if copies:
        held = _arguments
        stream = streamed_weights.timer(module["main"], lambda: held.in_turns(args, copies))
        return sample(run_once, stream, timing, best)
    return sample(run_once, measure, timing, best)


def _on_cpu(options: dict[str, Any]) -> bool:
    return bool(options.get("device", "cpu") == "cpu")


def load(artifact: str, options: dict[str, Any]) -> tuple[Any, Any]:
    """The device of ``options``, and the loaded library."""
    import tvm
    import tvm_ffi

    if _on_cpu(options):
        return tvm.cpu(0), tvm.runtime.load_module(artifact)
    # Release its kernels once it is unused: with some drivers they take megabytes.
    module = tvm_ffi.load_module(artifact, keep_module_alive=False)
    return tvm.device(options["device"], 0), module


def sample(
    run_once: Callable[[], float],
    measure: Callable[[int], list[float]],
    timing: Timing,
    best: float | None,
) -> list[float]:
    """Seconds per call, one value per repeat, of a candidate that may be dropped early.

    ``run_once`` makes one call and returns its seconds; ``measure(n)`` returns those of ``n`` repeats.
    ``best``: the seconds that the candidate must come near; see :func:`run`.
    """
    if best:
        limit = max(ABORT_AFTER_RUNS_RATIO * best, MIN_ABORTABLE_SECONDS)
        seconds = run_once()
        if seconds > limit:  # or it was disturbed, which seldom happens twice
            seconds = min(seconds, run_once())
        if seconds > limit:
            return [seconds]
    values = measure(min(2, timing.repeat))
    if best and min(values) > ABORT_AFTER_REPEATS_RATIO * best:
        return values
    while (left := timing.repeat - len(values)) > 0:
        long = timing.number * left * min(values) > LONG_MEASUREMENT
        if long and 2 * len(values) >= timing.repeat and _agree(values):
            break
        values += measure(min(3, left) if long else left)
    return values


def _agree(values: list[float]) -> bool:
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return bool(high - low < MAX_RELATIVE_IQR * middle)


class Arguments:
    """Arguments of candidates, on ``device``.

    Candidates of a workload differ only in their weights' layout. They share the same memory, which
    is filled once (9 MB of weights take 30 ms, as long as all runs of a good candidate).

    ``filler(tensor, seed)``, if the device's machine has one, fills a tensor as
    :func:`tvmtune.test_data.fill` would.
    """

    def __init__(self, device: Any, filler: Callable[[Any, int], Any] | None = None) -> None:
        self.device = device
        self._filler = filler
        self._key: Any = ()
        self._flat: list[Any] = []
        self._copies: list[list[Any]] = []

    def of(self, args: Sequence[TensorSpec]) -> list[Any]:
        key = tuple((product(spec.shape), spec.dtype) for spec in args)
        if self._key != key:
            self._key, self._flat, self._copies = (), [], []  # free them before allocating others
            inner = range(1, len(args) - 1)
            self._flat = [self._filled(spec, weight=n in inner) for n, spec in enumerate(args)]
            self._key = key
        return _views(self._flat, args)

    def in_turns(self, args: Sequence[TensorSpec], copies: int) -> list[list[Any]]:
        """The arguments ``copies`` times, each with weights of its own: all but the first and the last
        argument."""
        self.of(args)
        first, *weights, last = self._flat
        while len(self._copies) < copies - 1:
            self._copies.append([first, *map(_copied, weights), last])
        return [_views(flat, args) for flat in [self._flat, *self._copies[: copies - 1]]]

    def _filled(self, spec: TensorSpec, *, weight: bool) -> Any:
        import tvm

        count = product(spec.shape)
        if self._filler is not None:
            flat = tvm.runtime.empty((count,), spec.dtype, self.device)
            self._filler(flat, 0)
            return flat
        values = fill(spec).reshape(-1)
        on_cpu = self.device.dlpack_device_type() == tvm.cpu().dlpack_device_type()
        if weight and on_cpu and count:
            return _in_huge_pages(values.view(np.uint8), spec.dtype)
        return tvm.runtime.tensor(values, self.device)


def _in_huge_pages(values: np.ndarray, dtype: str) -> Any:
    """A vector of these bytes, in NumPy's memory, which is in huge pages from 4 MB on, as the weights
    of a library are."""
    import tvm

    flat = tvm.runtime.from_dlpack(aligned(values))
    return flat._create_view((values.size // numpy_dtype(dtype).itemsize,), dtype)


def _copied(flat: Any) -> Any:
    as_bytes = flat._create_view((nbytes(flat),), "uint8")
    return _in_huge_pages(np.from_dlpack(as_bytes), str(flat.dtype))


def _views(flat: Sequence[Any], args: Sequence[TensorSpec]) -> list[Any]:
    return [each._create_view(spec.shape) for each, spec in zip(flat, args, strict=True)]


def check(
    artifact: str, reference: str, args: Sequence[TensorSpec], options: dict[str, Any]
) -> float:
    """The largest error of all arguments after both have run; see
    :func:`tvmtune.measure.comparison.worst_error`. Infinite if the candidate writes beyond its
    arguments.

    The candidate is called twice on the same values: it may leave something behind, or its threads may
    race. The reference's results are stored beside its library.
    """
    try:
        return compare(lambda values: _after(artifact, values, options), reference, args, calls=2)
    except OutOfBounds:
        return math.inf


def compare(run: Run, reference: str, args: Sequence[TensorSpec], *, calls: int = 1) -> float:
    """:func:`check` for a candidate that ``run`` runs. The reference is a library for this machine."""
    return worst_error(args, run, lambda which: _expected(reference, args, which), calls)


def run_reference(reference: str, args: Sequence[TensorSpec]) -> None:
    """Run a reference on all values that :func:`compare` will need, and store its results."""
    for which in check_data.SETS:
        _expected(reference, args, which)


def _expected(reference: str, args: Sequence[TensorSpec], which: int) -> tuple[Values, Values]:
    """Each argument's value in a set of data, before the call and after that of the reference."""
    return stored_reference(
        args, which, lambda values: _after(reference, values, {}), Path(reference)
    )


def _after(artifact: str, values: Values, options: dict[str, Any]) -> Values:
    import tvm

    device, module = load(artifact, options)
    if _on_cpu(options):
        arguments = GuardedArguments(values)
        module["main"](*arguments.tensors())
        return arguments.arrays()
    arrays = [tvm.runtime.tensor(each, device) for each in values]
    module["main"](*arrays)
    return [array.numpy() for array in arrays]
