"""Peers of tvmtune's own: other libraries of the same network, and a kernel file's reference.

They take turns in the bench like :mod:`other runtimes <tvmtune.bench.peers>`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tvmtune.bench.peers import Peer

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from tvmtune.runtime.library import Library
    from tvmtune.types import Network


class Baseline(Peer):
    """Another library of the same network."""

    package = "tvmtune"
    foreign = False
    captures = True

    def __init__(self, library: Library) -> None:
        self.library = library
        self.device = library.runtime

    def load(self, network: Network, threads: int) -> None:
        """Do nothing: the library is open, with the threads that it was compiled for."""

    def set_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        self.library.set_inputs(inputs)

    def invoke(self, count: int = 1) -> float:
        return self.library.invoke(count)

    def device_seconds(self, count: int) -> float | None:
        return self.library.device_seconds(count)

    def outputs(self) -> list[np.ndarray]:
        return self.library.session.outputs()


class Untuned(Baseline):
    """The library compiled without records: tvmtune's default schedules."""

    name = "untuned"


class AsWritten(Baseline):
    """The library compiled without schedules: the loops as the operator's author wrote them."""

    name = "as written"
    parallel = False


class NumPy(Peer):
    """A kernel file's NumPy reference."""

    name = "numpy"
    package = "numpy"

    def load(self, network: Network, threads: int) -> None:
        """Keep the network. NumPy itself decides where it uses threads: in products of its BLAS."""
        self._network = network

    def set_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        self._inputs = dict(inputs)

    def invoke(self, count: int = 1) -> float:
        start = time.perf_counter()
        for _ in range(count):
            self._outputs = self._network.reference(self._inputs)
        return time.perf_counter() - start

    def outputs(self) -> list[np.ndarray]:
        return self._outputs
