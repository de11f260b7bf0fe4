"""A network part of which computes in whole numbers."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.errors import UsageError
from tvmtune.networks.inputs import check_inputs
from tvmtune.quantise import calibrate, execute, groups, integers, region, scales
from tvmtune.quantise.integers import Whole
from tvmtune.quantise.outside import channels_last
from tvmtune.quantise.region import Layer
from tvmtune.types import Device, Network, Prepared

if TYPE_CHECKING:
    import tvm

_CALL = "tvmtune.quantise.group"


def floats(network: Network, device: Device, layout: str | None) -> Prepared:
    """A network in which layers can be found. Raises :class:`UsageError` for another layout."""
    from tvmtune.graph import pipeline

    if layout is not None and layout.upper() != region.LAYOUT:
        raise UsageError(f"layout '{layout}': whole numbers are packed from {region.LAYOUT}.")
    prepared = pipeline.prepare(network, device, region.LAYOUT)
    prepared.graph = region.distinct(prepared.graph)
    return prepared


def quantised(
    prepared: Prepared, layers: Collection[Layer], calibration: Mapping[str, np.ndarray] | None
) -> QuantisedNetwork:
    """The network of :func:`floats` with ``layers``, in program order, in whole numbers.

    ``calibration`` maps inputs to (M x N, ...) values, for M runs; without it random ones are taken.
    Raises :class:`UsageError` for data that do not fit.
    """
    samples = None
    if calibration is not None:
        samples = calibrate.check(prepared.network, calibration, "the calibration data")
    prepared.graph = channels_last(prepared.graph, layers)
    return QuantisedNetwork(prepared, layers, samples)


class QuantisedNetwork:
    """Implements :class:`tvmtune.types.Network` for a float network and the layers that are quantised.

    Scales are chosen when they are first asked for. The reference computes the layers in NumPy's whole
    numbers and leaves everything else to TVM, compiled as a library's float part is, so that both meet
    at the same values; that the float part is right is another check's business.
    """

    def __init__(
        self,
        prepared: Prepared,
        layers: Collection[Layer],
        samples: Sequence[Mapping[str, np.ndarray]] | None = None,
    ) -> None:
        """``layers`` in program order; ``samples`` are inputs, each for one run; None: random ones."""
        network = prepared.network
        self.float, self.prepared, self.layers = network, prepared, list(layers)
        self.name, self.inputs, self.outputs = network.name, network.inputs, network.outputs
        self.source, self.weights_hash = network.source, network.weights_hash
        self.structure_hash = network.structure_hash
        self._samples = samples

    def to_relax(self) -> tvm.IRModule:
        return self.float.to_relax()

    def to_onnx(self) -> bytes | None:
        """The float network: what peers are given."""
        return self.float.to_onnx()

    @functools.cached_property
    def _tensors(self) -> dict[str, np.ndarray]:
        names = dict.fromkeys(n for x in self.layers for n in (*x.inputs, x.output))
        samples = self._samples
        if samples is None:
            warnings.warn(
                f"{self.name} is calibrated with {calibrate.SAMPLES} random inputs: give real ones "
                "with --calibration FILE.npz",
                stacklevel=2,
            )
            samples = calibrate.synthetic(self.float)
        return calibrate.tensors(self.prepared, list(names), samples)

    @functools.cached_property
    def _chosen(self) -> tuple[list[Whole], dict[str, int]]:
        return scales.choose(self.layers, self._tensors)

    @property
    def wholes(self) -> list[Whole]:
        """The layers in whole numbers."""
        return self._chosen[0]

    @property
    def exponents(self) -> dict[str, int]:
        """Of each tensor that they read or write."""
        return self._chosen[1]

    def table(self) -> list[scales.Row]:
        """What became of each layer."""
        return scales.table(*self._chosen, self._tensors)

    def reference(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        check_inputs(inputs, self.inputs)
        return self._reference(inputs)

    @functools.cached_property
    def _reference(self) -> execute.Run:
        import tvm_ffi

        parts = groups.cut(self.prepared.graph, self.layers)
        by_output = {whole.layer.output: whole for whole in self.wholes}
        graph = groups.replace(self.prepared.graph, parts, functools.partial(_emit, parts))

        def compute(number: Any, *tensors: Any) -> None:
            group = parts[int(number.numpy())]
            wholes = [by_output[layer.output] for layer in group.layers]
            count = len(group.inputs)
            known = {
                name: integers.quantise(tensor.numpy(), self.exponents[name])
                for name, tensor in zip(group.inputs, tensors[:count], strict=True)
            }
            made = integers.run_all(wholes, known)
            for name, tensor in zip(group.outputs, tensors[count:], strict=True):
                tensor.copyfrom(integers.restore(made[name], self.exponents[name]))

        # A machine looks functions up once, when it is made.
        tvm_ffi.register_global_func(_CALL, compute, override=True)
        return execute.compiled(self.prepared, graph)


def _emit(
    parts: Sequence[groups.Group], builder: Any, group: groups.Group, given: dict[str, Any]
) -> dict[str, Any]:
    """A call of NumPy on float tensors."""
    from tvm import relax

    shapes = {layer.output: layer.out_shape for layer in group.layers}
    types = [relax.TensorType(shapes[name], "float32") for name in group.outputs]
    number = relax.const(parts.index(group), "int64")
    call = relax.op.call_dps_packed(
        _CALL, [number, *given.values()], out_ty=types[0] if len(types) == 1 else types
    )
    made = builder.emit(call)
    if len(types) == 1:
        return {group.outputs[0]: made}
    return {n: builder.emit(relax.TupleGetItem(made, i)) for i, n in enumerate(group.outputs)}
