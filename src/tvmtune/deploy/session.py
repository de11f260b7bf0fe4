"""Where a library runs: in this process, or on a board (:mod:`tvmtune.deploy.remote`)."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tvmtune.deploy.timing import rest
from tvmtune.errors import TvmtuneError, last_line, memory_is_full

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tvmtune.deploy.remote import Borrowed
    from tvmtune.types import JSON

BETWEEN = "(between kernels)"
"""Name of the row for what the VM does itself: checks of shapes, memory, dispatch."""

_ENTRY = "main"


@dataclass(frozen=True)
class KernelTime:
    """What one kernel costs in one run of the network."""

    name: str
    calls: int
    """How often it is called per run."""
    ms: float
    """Milliseconds per run, all its calls together."""
    share: float
    """Its part of the whole run, from 0 to 1."""

    def to_json(self) -> JSON:
        return asdict(self)


class Session(Protocol):
    """A loaded library on some device. Inputs and outputs are in the order of the metadata."""

    threads: int
    """CPU threads that it computes with."""
    board: Borrowed | None
    """The board that it runs on; None for this machine."""

    def set_inputs(self, arrays: Sequence[np.ndarray]) -> None:
        """Copy the inputs to the device, where they stay."""

    def invoke(self, count: int = 1) -> float:
        """Run ``count`` times, wait for the last, and return the seconds that all took."""
        ...

    def device_seconds(self, count: int) -> float | None:
        """Seconds per run over ``count`` runs by the clock of the GPU that it runs on; None where there
        is none, or it cannot be asked."""
        ...

    def outputs(self) -> list[np.ndarray]:
        """Copies of the outputs of the last run."""
        ...

    def rest(self) -> None:
        """Wait until the threads of its process are asleep, see :func:`tvmtune.deploy.timing.rest`."""

    def profile(self, repeat: int) -> list[KernelTime]:
        """Time each kernel on the inputs that are in place, the dearest first.

        Medians of ``repeat`` runs. The last row is :data:`BETWEEN`, what is left of a run without
        the profiler.
        """
        ...


class LocalSession:
    """Implements :class:`Session` in this process."""

    board: Borrowed | None = None

    def __init__(self, path: Path, runtime: str, threads: int) -> None:
        """Load the library at ``path`` for TVM's device type ``runtime``, e.g. ``cpu``.

        Raises TvmtuneError if it cannot be loaded.
        """
        import tvm
        from tvm.runtime.vm import VirtualMachine

        from tvmtune.threads import share

        share(threads)
        self.threads = threads
        # By its format rather than by its suffix, and with a path that the loader does not look up.
        load = tvm.get_global_func("ffi.Module.load_from_file.so")
        try:
            self._device = tvm.device(runtime, 0)
            self._vm = VirtualMachine(load(str(path.absolute()), "so"), self._device)
        except Exception as exc:  # TVM raises classes of its own, and the loader's as they come
            what = memory_is_full(exc) or last_line(exc)
            raise TvmtuneError(f"cannot load {path}: {what}") from exc
        self._tensor = tvm.runtime.tensor
        self._waits = runtime != "cpu"

    def set_inputs(self, arrays: Sequence[np.ndarray]) -> None:
        # not ascontiguousarray, which makes a vector of a scalar
        tensors = [self._tensor(np.asarray(a, order="C"), self._device) for a in arrays]
        self._vm.set_input(_ENTRY, *tensors)

    def invoke(self, count: int = 1) -> float:
        run = self._vm.module["invoke_stateful"]
        start = time.perf_counter()
        for _ in range(count):
            run(_ENTRY)
        if self._waits:
            self._device.sync()
        return time.perf_counter() - start

    def device_seconds(self, count: int) -> float | None:
        if not self._waits:
            return None
        # By events of CUDA's stream, or those of OpenCL's kernels: what TVM's timer is made of.
        timed = self._vm.module.time_evaluator("invoke_stateful", self._device, number=count)
        return float(timed(_ENTRY).mean)

    def outputs(self) -> list[np.ndarray]:
        return [tensor.numpy() for tensor in _flat(self._vm.get_outputs(_ENTRY))]

    def rest(self) -> None:
        rest()

    def profile(self, repeat: int) -> list[KernelTime]:
        # TVM 0.27 has no profiling VM; it has a hook around every call that the VM makes.
        self.invoke()
        whole = 1e3 * statistics.median(self.invoke() for _ in range(repeat))
        runs: list[dict[str, float]] = []
        calls: dict[str, int] = {}
        start, cheapest = 0.0, float("inf")

        def around(_function: Any, name: str, before: bool, _result: Any, *_args: Any) -> int:
            nonlocal start, cheapest
            if self._waits:
                self._device.sync()
            if before:
                start = time.perf_counter()
                return 0
            spent = time.perf_counter() - start
            if name.startswith("vm.builtin."):
                # The hook takes longer than most of these; the cheapest tells what it takes itself.
                cheapest = min(cheapest, spent)
            else:
                runs[-1][name] = runs[-1].get(name, 0.0) + spent
                calls[name] = calls.get(name, 0) + 1
            return 0

        self._vm.set_instrument(around)
        try:
            for _ in range(repeat):
                runs.append({})
                self.invoke()
        finally:
            self._vm.set_instrument(None)
        hook = cheapest if cheapest < 1e-5 else 0.0
        times = {
            name: max(0.0, 1e3 * (statistics.median(run[name] for run in runs) - each * hook))
            for name, each in ((name, count // repeat) for name, count in calls.items())
        }
        kernels = sum(times.values())
        total = max(whole, kernels) or 1.0
        rows = [KernelTime(n, calls[n] // repeat, ms, ms / total) for n, ms in times.items()]
        rows.sort(key=lambda row: -row.ms)
        rest = total - kernels
        return [*rows, KernelTime(BETWEEN, 1, rest, rest / total)]


def _flat(value: Any) -> list[Any]:
    """The tensors in a tuple of tuples of tensors, or the only one."""
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in _flat(part)]
    return [value]
