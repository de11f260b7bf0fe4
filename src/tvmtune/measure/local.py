"""Build, time and check a candidate on this machine; each function runs in a worker."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvmtune import threads as tvm_threads
from tvmtune.accuracy import relative_error
from tvmtune.filling import fill
from tvmtune.types import TensorSpec, Timing, product

PASSES: dict[str, Any] = {
    "config": {"tirx.disable_assert": True, "tirx.disable_cse_tir": True},
    "disabled_pass": ["tirx.RemoveNoOp", "s_tir.HoistIfThenElse"],
}
"""What a candidate does without: the checks of its arguments, which are half of its object code, and
passes that take a third of TVM's part of the work and leave nothing that LLVM would not do itself.
Kernels come out equally quick: over 48 of ResNet-18 the ratio had a median of 1.000 and lay between
0.99 and 1.01 for eight in ten."""

LLVM = ("-dag-maps-huge-region:uint=100", "-dag-maps-reduction-size:uint=50")
"""From how many memory accesses in a row on LLVM's scheduler stops to compare each with each. With
its 1000, scheduling took up to half of the build of an unrolled kernel."""

FLUSH = "cache_flush_cpu_non_first_arg"
"""TVM's function that flushes all arguments but the first from a CPU's caches."""

HOPELESS = 3.0
BEHIND = 1.5
"""How many times slower than the best a candidate is given up: after its first two runs, or after two
repeats."""
SHORT = 1e-3
"""Seconds. Runs that take less are not worth saving."""
LONG = 0.05
"""Seconds. Where the other repeats take longer, times that agree are enough after half of them."""
AGREE = 0.01
"""That times agree: the middle half of them lies within this part of their median."""

_kept: Arguments | None = None
"""In a run worker: what candidates are called with."""


def build(
    mod: Any,
    target: dict[str, Any],
    options: dict[str, Any],
    directory: str,
    pack: Callable[..., str] | None = None,
) -> str:
    """Compile ``mod`` and link it into ``directory``; returns the library's path.

    It is built by :data:`PASSES` and :data:`LLVM`, unless ``options["shipped"]`` asks for what TVM
    does by default. ``options["linker"]`` is the command prefix of an ELF linker: TVM's objects need
    no C library, so the bare linker does (5 ms, where the compiler's driver takes 50).
    ``options["config"]`` is for TVM's PassContext in either case. ``pack`` writes what is no machine
    code of the CPU's, as ``fpack_imports`` of TVM's ``export_library``.
    """
    import uuid

    import tvm

    passes: dict[str, Any] = {"config": options.get("config", {})}
    if not options.get("shipped"):
        passes = {**PASSES, "config": {**PASSES["config"], **passes["config"]}}
        if target["kind"] == "llvm":
            target = {**target, "cl-opt": [*target.get("cl-opt", ()), *LLVM]}
    with tvm.transform.PassContext(**passes):
        library = tvm.compile(mod, target=tvm.target.Target(target))
    path = str(Path(directory) / f"{uuid.uuid4().hex}.so")

    def link(output: str, objects: Sequence[str], **_: Any) -> None:
        command = [*options["linker"], "-shared", "-o", output, *objects]
        subprocess.run(command, check=True, capture_output=True)

    library.export_library(path, fcompile=link, fpack_imports=pack)
    return path


def init(options: dict[str, Any]) -> None:
    """Called once in each run worker: the thread pool, each thread on a CPU of its own."""
    tvm_threads.settle(int(options["threads"]))


def run(
    artifact: str, args: Sequence[TensorSpec], timing: Timing, options: dict[str, Any]
) -> list[float]:
    """Seconds per call, one value per repeat.

    With ``timing.number == 1`` TVM's function ``options["flush"]``, if there is one, is called with the
    arguments before each repeat. On a CPU it flushes all but the first from the caches: inside a
    network the weights are cold, the activations warm. A candidate that is
    clearly slower than ``options["best"]`` (seconds) is given up after its first two runs, of which the
    better one is returned, or after two repeats; a long one ends once its times agree.

    ``options["device"]``: TVM's name of what runs the kernels, a CPU by default.
    """
    device, module = load(artifact, options)
    on_cpu = _on_cpu(options)
    global _kept
    _kept = _kept or Arguments(device)
    arrays = _kept.of(args)
    best = options.get("best")

    def look() -> float:
        if not on_cpu:  # its first run may take the time to build it, which TVM's timer leaves out
            return timed(1, number=1)[0]
        began = time.perf_counter()
        module["main"](*arrays)
        return time.perf_counter() - began

    def timed(repeat: int, **how: Any) -> list[float]:
        evaluator = module.time_evaluator("main", device, repeat=repeat, **how)
        return [float(s) for s in evaluator(*arrays).results]

    def measure(repeat: int) -> list[float]:
        flush = options.get("flush", "") if timing.number == 1 else ""
        return timed(
            repeat,
            number=timing.number,
            min_repeat_ms=timing.min_repeat_ms,
            f_preproc=flush,
        )

    return sample(look, measure, timing, best)


def _on_cpu(options: dict[str, Any]) -> bool:
    return bool(options.get("device", "cpu") == "cpu")


def load(artifact: str, options: dict[str, Any]) -> tuple[Any, Any]:
    """The device of ``options`` and the library, loaded."""
    import tvm
    import tvm_ffi

    if _on_cpu(options):
        return tvm.cpu(0), tvm.runtime.load_module(artifact)
    # Where nobody needs it any more its kernels are released: they take megabytes with some drivers.
    module = tvm_ffi.load_module(artifact, keep_module_alive=False)
    return tvm.device(options["device"], 0), module


def sample(
    look: Callable[[], float],
    measure: Callable[[int], list[float]],
    timing: Timing,
    best: float | None,
) -> list[float]:
    """Seconds per call, one value per repeat, of a candidate that may be given up early.

    ``look`` makes one call and returns its seconds, ``measure`` so many repeats. ``best`` is what the
    candidate has to come near, in seconds; see :func:`run`.
    """
    if best:
        limit = max(HOPELESS * best, SHORT)
        seconds = look()
        if seconds > limit:  # or disturbed, which seldom happens twice
            seconds = min(seconds, look())
        if seconds > limit:
            return [seconds]
    values = measure(min(2, timing.repeat))
    if best and min(values) > BEHIND * best:
        return values
    while (left := timing.repeat - len(values)) > 0:
        long = timing.number * left * min(values) > LONG
        if long and 2 * len(values) >= timing.repeat and _agree(values):
            break
        values += measure(min(3, left) if long else left)
    return values


def _agree(values: list[float]) -> bool:
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return bool(high - low < AGREE * middle)


class Arguments:
    """Arrays to call candidates with, on ``device``.

    Candidates of a workload differ in the order of their weights alone: they get the same memory,
    which is filled once (9 MB of weights take 30 ms, as long as all runs of a good candidate).

    ``filler(tensor, seed)``, where the device's side has it, gives a tensor the values of
    :func:`tvmtune.filling.fill`.
    """

    def __init__(self, device: Any, filler: Callable[[Any, int], Any] | None = None) -> None:
        self.device = device
        self._filler = filler
        self._key: Any = ()
        self._flat: list[Any] = []

    def of(self, args: Sequence[TensorSpec]) -> list[Any]:
        key = tuple((product(spec.shape), spec.dtype) for spec in args)
        if self._key != key:
            self._key, self._flat = (), []  # the old ones go before the new ones come
            self._flat = [self._filled(spec) for spec in args]
            self._key = key
        return [flat._create_view(s.shape) for flat, s in zip(self._flat, args, strict=True)]

    def _filled(self, spec: TensorSpec) -> Any:
        import tvm

        if self._filler is None:
            return tvm.runtime.tensor(fill(spec).reshape(-1), self.device)
        flat = tvm.runtime.empty((product(spec.shape),), spec.dtype, self.device)
        self._filler(flat, 0)
        return flat


def check(
    artifact: str, reference: str, args: Sequence[TensorSpec], options: dict[str, Any]
) -> float:
    """The worst of max|y - ref| / max|ref| over all arguments after both have run.

    Outputs are filled with NaN first, so that a kernel that writes nothing is wrong. What the reference
    changed is kept beside its library: it is slow, and is asked again for the next leader.
    """
    return compare(lambda values: _after(artifact, values, options), reference, args)


def compare(
    after: Callable[[list[np.ndarray]], list[np.ndarray]],
    reference: str,
    args: Sequence[TensorSpec],
) -> float:
    """:func:`check` for a candidate that ``after`` calls with values for all arguments, returning what
    they are then; the reference is a library of this machine's."""
    cache = Path(reference).with_suffix(".npz")
    before = _before(args)
    if not cache.exists():
        changed = {
            str(n): new
            for n, (old, new) in enumerate(zip(before, _after(reference, before, {}), strict=True))
            if not np.array_equal(old, new)  # true for NaN, too: an output that was not written
        }
        # Whole or not at all: others may check against it at this time, and a full disk must not
        # leave half of it to be believed.
        fresh = cache.with_name(f"{cache.stem}-{os.getpid()}.tmp")
        try:
            with fresh.open("wb") as file:
                np.savez(file, **changed)  # type: ignore[arg-type]
            fresh.replace(cache)
        finally:
            fresh.unlink(missing_ok=True)
    with np.load(cache) as stored:
        # A file keeps the bits of bfloat16, and forgets what they are.
        expected = [stored.get(str(n), old).view(old.dtype) for n, old in enumerate(before)]
    worst = 0.0
    for got, want in zip(after(before), expected, strict=True):
        worst = max(worst, relative_error(got, want))
    return worst


def _before(args: Sequence[TensorSpec]) -> list[np.ndarray]:
    """What each argument is before the call; the last is an output."""
    values = [fill(spec, seed=index) for index, spec in enumerate(args)]
    if values and values[-1].dtype.kind == "f":
        values[-1][...] = np.nan
    return values


def _after(
    artifact: str, values: Sequence[np.ndarray], options: dict[str, Any]
) -> list[np.ndarray]:
    import tvm

    device, module = load(artifact, options)
    arrays = [tvm.runtime.tensor(each, device) for each in values]
    module["main"](*arrays)
    return [array.numpy() for array in arrays]
