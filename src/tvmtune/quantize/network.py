"""A network with quantized layers, and its reference in NumPy integers."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.errors import UsageError
from tvmtune.networks import quantization
from tvmtune.networks.inputs import check_inputs, ranges_of
from tvmtune.quantize import calibrate, execute, groups, integers, scales
from tvmtune.quantize.float_fallback import channels_last
from tvmtune.quantize.graph import with_unique_names
from tvmtune.quantize.integers import QuantizedLayer
from tvmtune.quantize.layers import LAYOUT, Layer
from tvmtune.types import Device, Network, Prepared, state_of

if TYPE_CHECKING:
    import tvm

_GROUP_FUNCTION = "tvmtune.quantize.group"
"""Packed function that computes a group of layers in NumPy."""


def prepare_float_graph(network: Network, device: Device, layout: str | None) -> Prepared:
    """Prepare a network as a graph in which layers can be found.

    Raises :class:`UsageError` for another ``layout`` than NCHW, and for options of calibration, which
    power-of-two scales do not have.
    """
    from tvmtune.passes import pipeline

    options = getattr(network, "options", None)
    if options is not None and not options.is_default:
        raise UsageError(
            f"{quantization.OPTIONS} need a CPU with "
            f"dot-product instructions, such as AVX2, and an ONNX form of {network.name}: omit them"
        )

    if layout is not None and layout.upper() != LAYOUT:
        raise UsageError(f"layout '{layout}': int8 tensors are packed from {LAYOUT}; omit --layout")
    prepared = pipeline.prepare(network, device, LAYOUT, keep_convolutions=True)
    prepared.graph = with_unique_names(prepared.graph)
    return prepared


def quantize_network(
    prepared: Prepared, layers: Collection[Layer], calibration: Mapping[str, np.ndarray] | None
) -> QuantizedNetwork:
    """The network of :func:`prepare_float_graph` with ``layers``, in program order, quantized.

    ``calibration`` maps inputs to (M x N, ...) values for M runs; without it, random ones are used.
    Raises :class:`UsageError` for data that do not fit.
    """
    samples = None
    if calibration is not None:
        samples = calibrate.split_runs(prepared.network, calibration, "the calibration data")
    prepared.graph = channels_last(prepared.graph, layers)
    return QuantizedNetwork(prepared, layers, samples)


class QuantizedNetwork:
    """Implements :class:`tvmtune.types.Network` for a float network with quantized layers.

    Scales are chosen on first use. The reference computes the layers in NumPy integers and leaves the
    rest to TVM, compiled like a library's float part so that both get equal values; other checks cover
    the float part itself.
    """

    def __init__(
        self,
        prepared: Prepared,
        layers: Collection[Layer],
        samples: Sequence[Mapping[str, np.ndarray]] | None = None,
    ) -> None:
        """``layers`` in program order. Each of ``samples`` holds the inputs of one run; None stands for
        random ones."""
        network = prepared.network
        self.float, self.prepared, self.layers = network, prepared, list(layers)
        self.name, self.inputs, self.outputs = network.name, network.inputs, network.outputs
        self.source, self.weights_hash = network.source, network.weights_hash
        self.structure_hash = network.structure_hash
        self.ranges, self.state = ranges_of(network), state_of(network)
        self._samples = samples

    def to_relax(self) -> tvm.IRModule:
        return self.float.to_relax()

    def to_onnx(self) -> bytes | None:
        """The float network, for other runtimes."""
        return self.float.to_onnx()

    @functools.cached_property
    def _tensors(self) -> dict[str, np.ndarray]:
        names = dict.fromkeys(n for x in self.layers for n in (*x.inputs, x.output))
        samples = self._samples
        if samples is None:
            calibrate.warn_of_random_samples(self.float)
            samples = calibrate.random_samples(self.float)
        return calibrate.record_tensors(self.prepared, list(names), samples)

    @functools.cached_property
    def _quantized(self) -> tuple[list[QuantizedLayer], dict[str, int]]:
        return scales.quantize_layers(self.layers, self._tensors)

    @property
    def quantized_layers(self) -> list[QuantizedLayer]:
        """The layers with their integer arithmetic, in program order."""
        return self._quantized[0]

    @property
    def exponents(self) -> dict[str, int]:
        """The exponent of each tensor that the layers read or write."""
        return self._quantized[1]

    def table(self) -> list[scales.LayerScales]:
        """Scales and error of each layer."""
        return scales.table(*self._quantized, self._tensors)

    def reference(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        check_inputs(inputs, self.inputs)
        return self._reference(inputs)

    @functools.cached_property
    def _reference(self) -> execute.Run:
        import tvm_ffi

        parts = groups.partition(self.prepared.graph, self.layers)
        by_output = {each.layer.output: each for each in self.quantized_layers}
        graph = groups.replace(
            self.prepared.graph, parts, functools.partial(_emit_numpy_call, parts)
        )

        def compute(number: Any, *tensors: Any) -> None:
            group = parts[int(number.numpy())]
            count = len(group.inputs)
            values = integers.run_all(
                [by_output[layer.output] for layer in group.layers],
                {
                    name: integers.quantize(tensor.numpy(), self.exponents[name])
                    for name, tensor in zip(group.inputs, tensors[:count], strict=True)
                },
            )
            for name, tensor in zip(group.outputs, tensors[count:], strict=True):
                tensor.copyfrom(integers.dequantize(values[name], self.exponents[name]))

        # The VM looks functions up once, when it is created.
        tvm_ffi.register_global_func(_GROUP_FUNCTION, compute, override=True)
        return execute.compile_graph(self.prepared, graph)


def _emit_numpy_call(
    parts: Sequence[groups.Group], builder: Any, group: groups.Group, inputs: dict[str, Any]
) -> dict[str, Any]:
    """A call of :data:`_GROUP_FUNCTION` on float tensors."""
    from tvm import relax

    shapes = {layer.output: layer.out_shape for layer in group.layers}
    types = [relax.TensorType(shapes[name], "float32") for name in group.outputs]
    number = relax.const(parts.index(group), "int64")
    call = builder.emit(
        relax.op.call_dps_packed(
            _GROUP_FUNCTION,
            [number, *inputs.values()],
            out_ty=types[0] if len(types) == 1 else types,
        )
    )
    if len(types) == 1:
        return {group.outputs[0]: call}
    return {n: builder.emit(relax.TupleGetItem(call, i)) for i, n in enumerate(group.outputs)}
