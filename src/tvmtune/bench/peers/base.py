"""The base class of every runtime that a library is compared with."""

from __future__ import annotations

import importlib.util
import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from tvmtune.errors import TvmtuneError
from tvmtune.machine import package_versions

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from tvmtune.types import Network


class Peer(ABC):
    """One runtime. Its package is not imported before :meth:`move` or :meth:`load`."""

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    """Other names that ``--vs`` accepts."""

    package: ClassVar[str]
    """The distribution that pip installs, which is also the name of the module."""

    extra: ClassVar[str] = ""
    """The extra of tvmtune that installs all it needs, if that is more than :attr:`package`."""

    parallel: ClassVar[bool] = True
    """Whether it uses as many threads as the library, or one."""

    foreign: ClassVar[bool] = True
    """Whether it has its own threads, which may spin after its turn."""

    device: str = "cpu"
    """TVM's name of the device that it runs on."""

    graphs: bool = False
    """Whether to launch its kernels on a GPU by a CUDA graph, if :attr:`captures`."""

    captures: ClassVar[bool] = False
    """Whether it can capture CUDA graphs."""

    @property
    def version(self) -> str:
        """Version of the package, or an empty string if it is not installed."""
        # A distribution of another name (-gpu) may have installed the module, which knows it too.
        module = sys.modules.get(self.package)
        return package_versions.version_of(self.package) or str(getattr(module, "__version__", ""))

    def available(self) -> str | None:
        """None if it can be used; otherwise the reason and a remedy."""
        if importlib.util.find_spec(self.package) is None:
            return f"{self.name} is not installed: {self.remedy}"
        return None

    @property
    def remedy(self) -> str:
        """The command that installs it."""
        return (
            f"pip install 'tvmtune[{self.extra}]'" if self.extra else f"pip install {self.package}"
        )

    def move(self, device: str) -> str | None:
        """Run on ``device``, TVM's name of a GPU, from the next :meth:`load` on.

        Returns None, or the reason if it stays on the CPU.
        """
        reason = self._why_not_cuda() if device == "cuda" else ""
        if reason is None:
            self.device = device
            return None
        return f"{self.name} computes on the CPU" + (f": {reason}" if reason else "")

    def _why_not_cuda(self) -> str | None:
        """None if it can run on CUDA here; otherwise the reason, empty if it never can."""
        return ""

    @abstractmethod
    def load(self, network: Network, threads: int) -> None:
        """Load the network in the form that suits it, to run with ``threads`` threads.

        This does everything that is done once, such as compiling. Raises TvmtuneError if there is no
        such form, and the runtime's own exceptions.
        """

    @abstractmethod
    def set_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Put the inputs, by name, in place for :meth:`invoke`."""

    @abstractmethod
    def invoke(self, count: int = 1) -> float:
        """Run ``count`` times on the inputs of :meth:`set_inputs`; returns the total seconds."""

    def device_seconds(self, count: int) -> float | None:
        """Seconds per run over ``count`` runs, by the GPU's clock; None if that cannot be read."""
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
    """The serialized ONNX model. Raises TvmtuneError if the network has no such form."""
    model = network.to_onnx()
    if model is None:
        raise TvmtuneError(f"{network.name} has no ONNX form that a file could hold")
    return model
