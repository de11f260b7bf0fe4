"""Run a library in this process; the protocol that sessions on boards implement too."""

from __future__ import annotations

import itertools
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tvmtune.errors import TvmtuneError, last_line, out_of_memory
from tvmtune.runtime.timing import rest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tvmtune.remote.client.lease import BoardLease
    from tvmtune.types import JSON

BETWEEN = "(between kernels)"
"""Row of a profile with the VM's own time: shape checks, memory, dispatch."""

ENTRY = "main"
"""The Relax function that a library runs."""

_opened = itertools.count()
"""Libraries that were opened in this process."""


@dataclass(frozen=True)
class KernelTime:
    """The time of one kernel in one run of the network."""

    name: str
    calls: int
    """Calls per run."""
    ms: float
    """Milliseconds per run, over all its calls."""
    share: float
    """Fraction of the whole run, from 0 to 1."""
    task: str | None = None
    """The task that it computes, as ``tvmtune tasks`` and logs call it; None for other kernels."""
    implementation: str | None = None
    """How: ``direct`` or the name of an algorithm."""
    gflops: float | None = None
    """Rate by the operations of the direct algorithm; None if it has none."""

    def to_json(self) -> JSON:
        return asdict(self)


class LibrarySession(Protocol):
    """A loaded library on a device. Inputs and outputs are in the order of the metadata."""

    threads: int
    """CPU threads that it computes with."""
    board: BoardLease | None
    """The board that it runs on; None on this machine."""

    def set_inputs(self, arrays: Sequence[np.ndarray | None]) -> None:
        """Copy the inputs to the device; None: what :meth:`keep` has for this input."""

    def keep(self, outputs: Mapping[int, int]) -> None:
        """Keep outputs of the last run, where they are, as later inputs: their numbers by those of the
        inputs."""

    def kept(self, number: int) -> np.ndarray:
        """A copy of what is kept for the input of this number."""
        ...

    def invoke(self, count: int = 1) -> float:
        """Run ``count`` times and wait for the last run; returns the total seconds."""
        ...

    def device_seconds(self, count: int) -> float | None:
        """Seconds per run over ``count`` runs, by the GPU's clock; None if that cannot be read."""
        ...

    def outputs(self, numbers: Sequence[int] | None = None) -> list[np.ndarray]:
        """Copies of outputs of the last run, by their numbers; by default of all."""
        ...

    def rest(self) -> None:
        """Wait until the threads of its process sleep (:func:`tvmtune.runtime.timing.rest`)."""

    def profile(self, repeat: int) -> list[KernelTime]:
        """Time each kernel on the current inputs, slowest first: medians of ``repeat`` runs.

        The last row is :data:`BETWEEN`, the rest of a run that is not profiled.
        """
        ...


class LocalSession:
    """Implements :class:`LibrarySession` in this process."""

    board: BoardLease | None = None

    def __init__(self, path: Path, runtime: str, threads: int) -> None:
        """Load the library at ``path`` for TVM's device type ``runtime``, e.g. ``cpu``.

        Raises TvmtuneError if it cannot be loaded.
        """
        import tvm
        from tvm.runtime.vm import VirtualMachine

        from tvmtune.library import thread_pool
        from tvmtune.machine.threads import share

        self.threads = threads
        name = _new_name(path)
        # By format, whatever the suffix.
        load = tvm.get_global_func("ffi.Module.load_from_file.so")
        try:
            self._device = tvm.device(runtime, 0)
            module = load(name, "so")
            own = thread_pool.set_threads(module, threads)
            self._vm = VirtualMachine(module, self._device)
        except Exception as exc:  # TVM's own classes, and those of the loader
            reason = out_of_memory(exc) or last_line(exc).replace(name, str(path))
            raise TvmtuneError(f"cannot load {path}: {reason}") from exc
        if own is None:
            share(threads)
        else:
            self.threads = own
        self._tensor = tvm.runtime.tensor
        self._kept: dict[int, Any] = {}
        self._is_async = runtime != "cpu"

    def set_inputs(self, arrays: Sequence[np.ndarray | None]) -> None:
        # ascontiguousarray would make a vector of a scalar
        tensors = [
            self._kept[n] if a is None else self._tensor(np.asarray(a, order="C"), self._device)
            for n, a in enumerate(arrays)
        ]
        self._vm.set_input(ENTRY, *tensors)

    def keep(self, outputs: Mapping[int, int]) -> None:
        tensors = flatten(self._vm.get_outputs(ENTRY))
        self._kept = {place: tensors[number] for place, number in outputs.items()}

    def kept(self, number: int) -> np.ndarray:
        array: np.ndarray = self._kept[number].numpy()
        return array

    def invoke(self, count: int = 1) -> float:
        run = self._vm.module["invoke_stateful"]
        start = time.perf_counter()
        for _ in range(count):
            run(ENTRY)
        if self._is_async:
            self._device.sync()
        return time.perf_counter() - start

    def device_seconds(self, count: int) -> float | None:
        if not self._is_async:
            return None
        # TVM's timer uses events of CUDA's stream, or of OpenCL's kernels.
        timed = self._vm.module.time_evaluator("invoke_stateful", self._device, number=count)
        return float(timed(ENTRY).mean)

    def outputs(self, numbers: Sequence[int] | None = None) -> list[np.ndarray]:
        return [tensor.numpy() for tensor in chosen(self._vm.get_outputs(ENTRY), numbers)]

    def rest(self) -> None:
        rest()

    def profile(self, repeat: int) -> list[KernelTime]:
        from tvmtune.library import huge_pages

        # TVM 0.27 has no profiling VM, but a hook around every call of the VM.
        self.invoke()
        whole = 1e3 * statistics.median(self.invoke() for _ in range(repeat))
        runs: list[dict[str, float]] = []
        calls: dict[str, int] = {}
        start, cheapest = 0.0, float("inf")

        def around(_function: Any, name: str, before: bool, _result: Any, *_args: Any) -> int:
            nonlocal start, cheapest
            if self._is_async:
                self._device.sync()
            if before:
                start = time.perf_counter()
                return 0
            spent = time.perf_counter() - start
            if name.startswith("vm.builtin.") or name == huge_pages.NAME:
                # The hook takes longer than most of these: the cheapest is the hook's own cost.
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


def _new_name(path: Path) -> str:
    """An absolute path of the file, spelled as never before in this process.

    For a path that it knows, the loader returns what it has loaded, even if another file has taken the
    place since. Spelled differently, the file is compared. It does not search for absolute paths.
    """
    spelling = "".join("./" if bit == "1" else "/" for bit in f"{next(_opened):b}")
    return f"{path.absolute().parent}/{spelling}{path.name}"


def chosen(outputs: Any, numbers: Sequence[int] | None) -> list[Any]:
    """The tensors of these numbers among the outputs of a virtual machine; None: all."""
    tensors = flatten(outputs)
    return tensors if numbers is None else [tensors[number] for number in numbers]


def flatten(value: Any) -> list[Any]:
    """The tensors in a nest of tuples, or the only tensor."""
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in flatten(part)]
    return [value]
