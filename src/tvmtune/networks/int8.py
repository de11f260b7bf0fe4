"""``--dtype int8``: a float network that a backend is asked to quantize."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmtune.networks.inputs import ranges_of
from tvmtune.types import Network

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import tvm

DTYPE = "int8"


class Int8Network:
    """Implements :class:`tvmtune.types.Network` by the float network, with int8 in its source.

    The backend chooses layers and scales for a device (:mod:`tvmtune.quantize`).
    """

    def __init__(self, network: Network) -> None:
        self._float = network
        self.name, self.inputs, self.outputs = network.name, network.inputs, network.outputs
        self.source = network.source | {"dtype": DTYPE}
        self.structure_hash, self.weights_hash = network.structure_hash, network.weights_hash
        self.ranges = ranges_of(network)

    def to_relax(self) -> tvm.IRModule:
        return self._float.to_relax()

    def to_onnx(self) -> bytes | None:
        """The float network, for other runtimes."""
        return self._float.to_onnx()

    def reference(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Outputs of float arithmetic."""
        return self._float.reference(inputs)


def is_wanted(network: Network) -> bool:
    """Whether a network is to be quantized to int8."""
    return network.source.get("dtype") == DTYPE
