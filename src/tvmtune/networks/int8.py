"""``--dtype int8``: a float network that a backend is asked to quantize, or its quantized ONNX form."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.networks import quantization
from tvmtune.networks.inputs import ranges_of
from tvmtune.types import Network, state_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import onnx
    import tvm

    from tvmtune.networks.onnx.network import OnnxNetwork
    from tvmtune.networks.quantization import Calibration
    from tvmtune.types import JSON

DTYPE = "int8"


class Int8Network:
    """Implements :class:`tvmtune.types.Network` by the float network, with int8 in its source.

    For some devices the backend chooses layers and scales (:mod:`tvmtune.quantize`). Once
    :meth:`calibrated`, it is the quantized ONNX network (:mod:`tvmtune.networks.onnx.quantize`), for
    its reference and for other runtimes, too. Its source has the ranges of all tensors, so that the
    same network can be loaded without the calibration data.
    """

    def __init__(
        self,
        network: Network,
        found: JSON | None = None,
        options: Calibration = quantization.DEFAULT,
    ) -> None:
        """``found``: of a calibrated network, see :mod:`tvmtune.networks.quantization`. Raises
        :class:`TvmtuneError` if it is damaged."""
        self._float = network
        self.options = options
        self.name, self.inputs, self.outputs = network.name, network.inputs, network.outputs
        self.source = network.source | {"dtype": DTYPE}
        self.structure_hash, self.weights_hash = network.structure_hash, network.weights_hash
        self.ranges, self.state = ranges_of(network), state_of(network)
        self.is_calibrated = found is not None
        if found is not None:
            quantization.check(found, network.name)
            self.source[quantization.KEY] = found
            self.computes = DTYPE

    def calibrated(
        self, samples: Sequence[Mapping[str, np.ndarray]], data: str = ""
    ) -> Int8Network | None:
        """The network with a range for each tensor that becomes bytes, from the inputs of some runs.

        ``data`` says what these are. None if the network has no ONNX form. Raises :class:`UsageError`
        for layers to skip that it has not and for ONNX networks above 2 GiB, and
        :class:`TvmtuneError` if no layer can be computed in integers, or not within the accuracy
        budget, and for values that are not finite.
        """
        from tvmtune.networks.onnx import calibration, quantize
        from tvmtune.networks.onnx.integer_layers import IntegerLayers
        from tvmtune.networks.onnx.layer_errors import Comparison, within_budget
        from tvmtune.networks.onnx.network import OnnxNetwork

        content = self._float.to_onnx()
        if content is None:
            if isinstance(self._float, OnnxNetwork):
                raise UsageError(
                    f"--dtype {DTYPE} is for networks below 2 GiB on this CPU: quantize {self.name} "
                    "with the tools of ONNX Runtime and load the quantized file"
                )
            return None
        model = quantize.prepared(content, self.name)
        every = IntegerLayers(model).all
        if not every:
            raise TvmtuneError(
                f"no layer of {self.name} can be computed in int8: omit --dtype int8"
            )
        skipped = self.options.skipped([layer.name for layer in every], self.name)
        found = IntegerLayers(model, skipped)
        if not found.layers:
            raise TvmtuneError(f"no layer of {self.name} can be computed in int8 left: skip fewer")
        tensors = sorted(set(found.tensors.values()))
        ranges = calibration.ranges(model, self.name, tensors, samples, self.options)

        def write(others: Collection[str]) -> onnx.ModelProto:
            return quantize.quantize(model, ranges, {*skipped, *others})

        comparison = Comparison(model, self.name, every, samples)
        if self.options.accuracy_budget is not None:
            budget = self.options.accuracy_budget
            skipped |= within_budget(comparison, write, found.layers, budget, self.name)
        written = write(())
        errors = comparison.errors(written)
        stored: JSON = {
            "method": self.options.method,
            "data": data,
            "samples": len(samples),
            "global_scale": self.options.global_scale,
            "accuracy_budget": self.options.accuracy_budget,
            "error": errors.error if np.isfinite(errors.error) else None,
            "skipped": [layer.name for layer in every if layer.name in skipped],
            "layers": [
                {"name": each.name, "operator": each.operator, "sqnr": errors.sqnr[each.name]}
                for each in every
            ],
            "ranges": {tensor: list(each) for tensor, each in ranges.items()},
        }
        network = Int8Network(self._float, stored, self.options)
        network.__dict__["_quantized"] = network._network(written)
        return network

    def to_relax(self) -> tvm.IRModule:
        return (self._quantized if self.is_calibrated else self._float).to_relax()

    def to_onnx(self) -> bytes | None:
        """For other runtimes: the float network unless it is calibrated."""
        return (self._quantized if self.is_calibrated else self._float).to_onnx()

    def reference(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Outputs of the quantized network by ONNX Runtime, or of float arithmetic unless it is
        calibrated."""
        return (self._quantized if self.is_calibrated else self._float).reference(inputs)

    @property
    def rounding_runs(self) -> list[tuple[list[np.ndarray], list[np.ndarray]]]:
        """See :attr:`OnnxNetwork.rounding_runs`; empty unless it is calibrated."""
        return self._quantized.rounding_runs if self.is_calibrated else []

    @functools.cached_property
    def _quantized(self) -> OnnxNetwork:
        from tvmtune.networks.onnx import quantize

        content = self._float.to_onnx()
        assert content is not None
        found = self.source[quantization.KEY]
        ranges = {name: quantize.Range(*each) for name, each in found["ranges"].items()}
        try:
            float_model = quantize.prepared(content, self.name)
            model = quantize.quantize(float_model, ranges, found.get("skipped", ()))
        except KeyError as error:
            raise TvmtuneError(f"the quantization of {self.name} lacks tensor {error}") from error
        return self._network(model)

    def _network(self, model: onnx.ModelProto) -> OnnxNetwork:
        from tvmtune.networks.onnx.network import OnnxNetwork

        return OnnxNetwork(model, name=self.name)


def is_wanted(network: Network) -> bool:
    """Whether a network is to be quantized to int8."""
    return network.source.get("dtype") == DTYPE


def restored(network: Network, found: JSON | None) -> Network:
    """The int8 network as it was calibrated, if it was; see :mod:`tvmtune.networks.quantization`."""
    assert isinstance(network, Int8Network)
    return Int8Network(network._float, found)
