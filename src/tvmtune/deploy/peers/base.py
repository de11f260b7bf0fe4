"""What every runtime that a library is compared with can do."""

from __future__ import annotations

import importlib.util
import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from tvmtune import system
from tvmtune.errors import TvmtuneError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from tvmtune.types import Network


class Peer(ABC):
    """One runtime. Nothing of it is imported before :meth:`move` or :meth:`load`."""

    name: ClassVar[str]
    package: ClassVar[str]
    """The distribution that pip installs, which is also the name of the module."""

    parallel: ClassVar[bool] = True
    """Whether it computes with as many threads as the library, or with one."""

    foreign: ClassVar[bool] = True
    """Whether it has threads of its own, which may spin when its turn is over."""

    device: str = "cpu"
    """Where it computes, by TVM's names."""

    graphs: bool = False
    """Whether it is to launch its kernels on a GPU together, by a CUDA graph, where it can."""

    captures: ClassVar[bool] = False
    """Whether it can."""

    @property
    def version(self) -> str:
        """Version of the package, or an empty string if it is not installed."""
        # The module knows it, too, where it came from a distribution of another name (-gpu).
        module = sys.modules.get(self.package)
        return system.version_of(self.package) or str(getattr(module, "__version__", ""))

    def available(self) -> str | None:
        """None if it can be used, or the reason why not, with the remedy."""
        if importlib.util.find_spec(self.package) is None:
            return f"{self.name} is not installed: pip install {self.package}"
        return None

    def move(self, device: str) -> str | None:
        """Have it compute on ``device``, a GPU by TVM's name, from the next :meth:`load` on. Where it
        cannot it stays on the CPU: the reason."""
        why = self._without_cuda() if device == "cuda" else ""
        if why is None:
            self.device = device
            return None
        return f"{self.name} computes on the CPU" + (f": {why}" if why else "")

    def _without_cuda(self) -> str | None:
        """None if it can compute on a GPU for CUDA here; otherwise the reason, if there is any."""
        return ""

    @abstractmethod
    def load(self, network: Network, threads: int) -> None:
        """Take the network in the form that suits it, to compute with ``threads`` threads.

        All that is done once, such as compiling, is done here. Raises TvmtuneError where there is no
        such form, and the runtime's own exceptions.
        """

    @abstractmethod
    def set_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Put the inputs, by name, where the calls that are timed find them."""

    @abstractmethod
    def invoke(self, count: int = 1) -> float:
        """Run ``count`` times on the inputs that are in place; the seconds that all took."""

    def device_seconds(self, count: int) -> float | None:
        """Seconds per run over ``count`` runs by the GPU's clock; None where that is not told."""
        return None

    @abstractmethod
    def outputs(self) -> list[np.ndarray]:
        """Outputs of the last run, in the order of the network."""

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Outputs for these inputs."""
        self.set_inputs(inputs)
        self.invoke()
        return self.outputs()


def onnx_form(network: Network) -> bytes:
    """The serialised ONNX model. Raises TvmtuneError if the network has no such form."""
    model = network.to_onnx()
    if model is None:
        raise TvmtuneError(f"{network.name} has no ONNX form that a file could hold")
    return model
