"""Open and run a compiled library."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tvmtune.errors import UsageError
from tvmtune.library import metadata, state, trailer
from tvmtune.networks.inputs import check_inputs, random_inputs
from tvmtune.runtime.timing import WARM_UP, measure
from tvmtune.types import TensorSpec

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from tvmtune.remote.client.lease import BoardLease
    from tvmtune.runtime.session import KernelTime, LibrarySession
    from tvmtune.types import JSON


class Library:
    """A library that is loaded and ready to run, here or on a board.

    Use it from the thread that opened it: TVM's virtual machine is not thread-safe, and on machines
    other than x86-64 the thread pool belongs to that thread. On x86-64, all that opened the same file
    share its threads, and the last number of threads counts.
    """

    metadata: JSON
    """See :mod:`tvmtune.library.metadata`."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    state: tuple[TensorSpec, ...]
    """Those of the inputs that the network keeps from run to run, such as the cache of a language
    model."""
    step_inputs: tuple[TensorSpec, ...]
    """The other inputs."""
    step_outputs: tuple[TensorSpec, ...]
    """The outputs without the new values of the state."""

    def __init__(self, metadata_: JSON, session: LibrarySession) -> None:
        self.metadata = metadata_
        self.inputs = metadata.specs(metadata_["inputs"])
        self.outputs = metadata.specs(metadata_["outputs"])
        self.session = session
        self._ready = False
        self._kept = {entry["name"]: entry for entry in metadata_.get("state", ())}
        self.step_inputs, self.step_outputs, self.state = map(
            metadata.specs, state.split(metadata_)
        )
        self._places = {spec.name: place for place, spec in enumerate(self.inputs)}
        outputs = {spec.name: place for place, spec in enumerate(self.outputs)}
        self._carried = {
            self._places[name]: outputs[each["output"]] for name, each in self._kept.items()
        }
        self._returned = [
            place for place, spec in enumerate(self.outputs) if spec in self.step_outputs
        ]
        self._next: dict[str, np.ndarray] = {}
        self.reset()

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        threads: int | None = None,
        *,
        low_memory: bool = False,
        board: BoardLease | None = None,
    ) -> Library:
        """Load the library at ``path``; first check that it is undamaged and that it can run here.

        ``threads``: CPU threads to compute with; by default as many as it was tuned for, or as this
        process may use if these are fewer. ``low_memory``: hold its weights once instead of four times,
        only to check outputs on the CPU (:class:`tvmtune.runtime.low_memory.LowMemorySession`).
        ``board``: run on that board, until the lease is closed. Raises UsageError if there is no such
        file or there are fewer CPUs than ``threads``, TvmtuneError if it cannot be loaded.
        """
        from tvmtune.machine.threads import choose
        from tvmtune.runtime.low_memory import LowMemorySession
        from tvmtune.runtime.session import LocalSession

        path = Path(path)
        stored = metadata.read_trailer(path)
        if board is not None:
            from tvmtune.runtime.remote_session import RemoteSession

            metadata.check_runnable(path, stored.data, board.described or {})
            trailer.check_code(path, stored)
            return cls(stored.data, RemoteSession(path, stored.data, board, threads))
        metadata.check_runnable(path, stored.data)
        trailer.check_code(path, stored)
        threads = choose(threads, int(stored.data["threads"]))
        device = stored.data["device"]
        runtime = metadata.runtime(stored.data)
        if runtime != "cpu" or device.get("needs_init"):
            from tvmtune import host

            host.backend(device["backend"]).serve_init()
        if low_memory:
            return cls(stored.data, LowMemorySession(path, threads))
        return cls(stored.data, LocalSession(path, runtime, threads))

    @property
    def runtime(self) -> str:
        """TVM's name of the device that its kernels run on: ``cpu``, ``opencl``, ``cuda``."""
        return metadata.runtime(self.metadata)

    @property
    def modelled(self) -> float | None:
        """Modeled seconds of its accelerator if that is simulated (timing it would time the
        simulation); otherwise None."""
        programs = self.metadata.get("modelled")
        return None if programs is None else sum(float(each["seconds"]) for each in programs)

    @property
    def threads(self) -> int:
        """CPU threads that it computes with."""
        return self.session.threads

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Run once; returns copies of the outputs, in the order of :attr:`outputs`.

        State that is not among ``inputs`` has its initial values; that of :meth:`step` does not matter,
        and does not change. Raises UsageError if names, shapes or dtypes of the inputs do not match
        :attr:`inputs`.
        """
        self.set_inputs(inputs)
        self.session.invoke()
        return self.session.outputs()

    def step(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Run once with the state that the last step left, and keep its new values on the device.

        Returns copies of :attr:`step_outputs`. Raises UsageError if names, shapes or dtypes of the
        inputs do not match :attr:`step_inputs`.
        """
        given = {name: np.asarray(value) for name, value in inputs.items()}
        check_inputs(given, self.step_inputs)
        self.session.set_inputs([given.get(s.name, self._next.get(s.name)) for s in self.inputs])
        self._ready = False  # another run of these inputs would be a step that nobody asked for
        self.session.invoke()
        self.session.keep(self._carried)
        self._next = {}
        return self.session.outputs(self._returned)

    def get_state(self) -> dict[str, np.ndarray]:
        """Copies of the state with which the next step begins, by name."""
        return {
            spec.name: self._next[spec.name].copy()
            if spec.name in self._next
            else self.session.kept(self._places[spec.name])
            for spec in self.state
        }

    def set_state(self, values: Mapping[str, np.ndarray]) -> None:
        """Begin the next step with this state, for example that of a library that read the prompt.

        Raises UsageError if names, shapes or dtypes do not match :attr:`state`.
        """
        given = {name: np.array(value) for name, value in values.items()}
        check_inputs(given, self.state, origin="the state")
        self._next = given

    def reset(self) -> None:
        """Begin the next step with the initial state."""
        self._next = {spec.name: self._initial_value(spec) for spec in self.state}

    def random_inputs(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Random inputs from ``seed``; integers are in the ranges that the library's check uses."""
        return random_inputs(self.inputs, seed, (self.metadata.get("check") or {}).get("ranges"))

    def set_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Copy the inputs to the device, for :meth:`invoke` and :meth:`time`.

        State that is not among ``inputs`` has its initial values in the first run; later runs may begin
        with what the run before left. Raises UsageError if names, shapes or dtypes of the inputs do not
        match :attr:`inputs`.
        """
        missing = {s.name: self._initial_value(s) for s in self.state if s.name not in inputs}
        inputs = {**inputs, **missing}
        check_inputs(inputs, self.inputs)
        self.session.set_inputs([inputs[spec.name] for spec in self.inputs])
        self._ready = True

    def invoke(self, count: int = 1) -> float:
        """Run ``count`` times on the inputs of :meth:`set_inputs`; returns the total seconds."""
        self._check_ready()
        return self.session.invoke(count)

    def device_seconds(self, count: int = 1) -> float | None:
        """Seconds per run over ``count`` runs, by the GPU's clock; None on CPUs and boards."""
        self._check_ready()
        return self.session.device_seconds(count)

    def time(
        self,
        inputs: Mapping[str, np.ndarray] | None = None,
        *,
        number: int = 1,
        repeat: int = 10,
        min_repeat_ms: float = 0,
        warmup: float = WARM_UP,
    ) -> list[float]:
        """Seconds per call by the wall clock, one value per repeat, with inputs on the device.

        A repeat makes ``number`` calls, or more to last ``min_repeat_ms``. ``warmup``: seconds of
        untimed calls first, at least one call. ``inputs``: None for those of :meth:`set_inputs`.
        """
        if inputs is not None:
            self.set_inputs(inputs)
        return measure(
            self.invoke, number=number, repeat=repeat, min_repeat_ms=min_repeat_ms, warmup=warmup
        )

    def profile(
        self, inputs: Mapping[str, np.ndarray] | None = None, *, repeat: int = 20
    ) -> list[KernelTime]:
        """Time each kernel, slowest first: medians of ``repeat`` runs.

        The last row is the time between kernels: shape checks, memory, calls.
        """
        if inputs is not None:
            self.set_inputs(inputs)
        self._check_ready()
        # Libraries of earlier versions do not name their kernels.
        tasks = {task.get("kernel"): task for task in self.metadata["tasks"].get("list", ())}
        return [
            _with_task(row, tasks.get(row.name.removesuffix(metadata.PACKED)))
            for row in self.session.profile(repeat)
        ]

    def _initial_value(self, spec: TensorSpec) -> np.ndarray:
        return state.decode(self._kept[spec.name], spec)

    def _check_ready(self) -> None:
        if not self._ready:
            raise UsageError("the library has no inputs yet: call set_inputs first")


def _with_task(row: KernelTime, task: JSON | None) -> KernelTime:
    """A row of a profile, with what the library's metadata tells about its task."""
    if task is None:
        return row
    rate = task["flop"] * row.calls / row.ms / 1e6 if task["flop"] and row.ms else None
    return replace(row, task=task["name"], implementation=task["implementation"], gflops=rate)
