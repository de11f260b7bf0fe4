"""What else a library may be held against: other libraries of its network, and the reference itself.

They take their turns in the bench as :mod:`other runtimes <tvmtune.deploy.peers>` do.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tvmtune.deploy.peers import Peer

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from tvmtune.deploy.library import Library
    from tvmtune.types import Network


class Baseline(Peer):
    """Another library of the same network."""

    package = "tvmtune"
    foreign = False
    captures = True

    def __init__(self, library: Library) -> None:
        self._library = library
        self.device = library.runtime

    def load(self, network: Network, threads: int) -> None:
        """It was loaded when it was opened, with the threads that it was compiled for."""

    def set_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        self._library.set_inputs(inputs)

    def invoke(self, count: int = 1) -> float:
        return self._library.invoke(count)

    def device_seconds(self, count: int) -> float | None:
        return self._library.device_seconds(count)

    def outputs(self) -> list[np.ndarray]:
        return self._library.session.outputs()


class Untuned(Baseline):
    """Compiled without records: tvmtune's own default schedules."""

    name = "untuned"


class AsWritten(Baseline):
    """Compiled without any schedule: the loops as the operator's author wrote them."""

    name = "as written"
    parallel = False


class NumPy(Peer):
    """A kernel file's reference, as it is."""

    name = "numpy"
    package = "numpy"

    def load(self, network: Network, threads: int) -> None:
        """NumPy uses threads where it wants to: in matrix products of its own BLAS."""
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
