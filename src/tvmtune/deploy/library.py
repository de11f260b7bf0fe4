"""A compiled network: what it says about itself, and running it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tvmtune.deploy import metadata, trailer
from tvmtune.deploy.timing import WARM_UP, measure
from tvmtune.errors import UsageError
from tvmtune.networks.inputs import check_inputs, random_inputs
from tvmtune.types import TensorSpec

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    import numpy as np

    from tvmtune.deploy.remote import Borrowed
    from tvmtune.deploy.session import KernelTime, Session
    from tvmtune.types import JSON


class Library:
    """A library that is loaded and ready to run.

    It belongs to the thread that opened it: TVM's pool of CPU threads does. It does not care where
    it runs; a :class:`tvmtune.deploy.session.Session` does that for it.
    """

    metadata: JSON
    """See :mod:`tvmtune.deploy.metadata`."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def __init__(self, metadata_: JSON, session: Session) -> None:
        self.metadata = metadata_
        self.inputs = metadata.specs(metadata_["inputs"])
        self.outputs = metadata.specs(metadata_["outputs"])
        self.session = session
        self._ready = False

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        threads: int | None = None,
        *,
        light: bool = False,
        board: Borrowed | None = None,
    ) -> Library:
        """Load the library at ``path``, after it was found to be whole and for this machine.

        ``threads``: CPU threads to compute with; by default as many as it was tuned for, or as this
        process may use if these are fewer. ``light``: with its weights in memory once instead of four
        times, but only to check it on the CPU, see :class:`tvmtune.deploy.light.LightSession`.
        ``board``: on that board instead of this machine, as long as it is not closed.
        Raises UsageError if there is no such file or there are not so many CPUs, TvmtuneError if it
        cannot be loaded here.
        """
        from tvmtune.deploy.light import LightSession
        from tvmtune.deploy.session import LocalSession
        from tvmtune.threads import choose

        path = Path(path)
        found = trailer.read(path)
        if board is not None:
            from tvmtune.deploy.remote import RemoteSession

            metadata.check_runnable(path, found.data, board.described or {})
            trailer.check_image(path, found)
            return cls(found.data, RemoteSession(path, found.data, board, threads))
        metadata.check_runnable(path, found.data)
        trailer.check_image(path, found)
        threads = choose(threads, int(found.data["threads"]))
        device = found.data["device"]
        runtime = metadata.runtime(found.data)
        if runtime != "cpu" or device.get("needs_init"):
            from tvmtune import host

            host.backend(device["backend"]).serve_init()
        if light:
            return cls(found.data, LightSession(path, threads))
        return cls(found.data, LocalSession(path, runtime, threads))

    @property
    def runtime(self) -> str:
        """Where its kernels run, by TVM's names: ``cpu``, ``opencl``, ``cuda``."""
        return metadata.runtime(self.metadata)

    @property
    def modelled(self) -> float | None:
        """Seconds that its accelerator takes by a model, where that is simulated: what is timed then is
        the simulation."""
        programs = self.metadata.get("modelled")
        return None if programs is None else sum(float(each["seconds"]) for each in programs)

    @property
    def threads(self) -> int:
        """CPU threads that it computes with."""
        return self.session.threads

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Outputs in the order of :attr:`outputs`, as arrays of their own.

        Raises UsageError, which names both sides, if names, shapes or dtypes do not fit.
        """
        self.set_inputs(inputs)
        self.session.invoke()
        return self.session.outputs()

    def random_inputs(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Inputs that depend on the seed alone, integers from the ranges that the check has."""
        return random_inputs(self.inputs, seed, (self.metadata.get("check") or {}).get("ranges"))

    def set_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Copy the inputs to the device, where the calls that are timed find them.

        Raises UsageError, which names both sides, if names, shapes or dtypes do not fit.
        """
        check_inputs(inputs, self.inputs)
        self.session.set_inputs([inputs[spec.name] for spec in self.inputs])
        self._ready = True

    def invoke(self, count: int = 1) -> float:
        """Run ``count`` times on the inputs that are in place; the seconds that all took."""
        if not self._ready:
            raise UsageError("the library has no inputs yet: call set_inputs first")
        return self.session.invoke(count)

    def device_seconds(self, count: int = 1) -> float | None:
        """Seconds per run over ``count`` runs on the inputs that are in place, by the clock of the GPU
        that it runs on; None on CPUs and boards."""
        if not self._ready:
            raise UsageError("the library has no inputs yet: call set_inputs first")
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
        """Seconds per call by the wall clock, one value per repeat, inputs already on the device.

        A repeat is ``number`` calls, or more until it lasts ``min_repeat_ms``. ``warmup``: seconds
        of untimed calls before, one call at least. ``inputs``: None for those that are in place.
        """
        if inputs is not None:
            self.set_inputs(inputs)
        return measure(
            self.invoke, number=number, repeat=repeat, min_repeat_ms=min_repeat_ms, warmup=warmup
        )

    def profile(
        self, inputs: Mapping[str, np.ndarray] | None = None, *, repeat: int = 20
    ) -> list[KernelTime]:
        """What each kernel costs, the dearest first: medians of ``repeat`` runs.

        The last row is what lies between the kernels: shape checks, memory, calls.
        """
        if inputs is not None:
            self.set_inputs(inputs)
        elif not self._ready:
            raise UsageError("the library has no inputs yet: call set_inputs first")
        return self.session.profile(repeat)
