"""Preparing networks for CPU backends: float networks as they are, int8 networks quantized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tvmtune import dot_instructions
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.networks import int8
from tvmtune.networks.int8 import Int8Network
from tvmtune.quantize import calibrate, cpu_kernels, groups
from tvmtune.quantize.layers import ConvolutionLayer, Layer
from tvmtune.quantize.network import QuantizedNetwork, prepare_float_graph, quantize_network
from tvmtune.quantize.region import find_region
from tvmtune.types import Algorithm, Device, ExtraSpace, Network, Prepared, Task


def prepare(
    network: Network,
    device: Device,
    layout: str | None,
    calibration: Mapping[str, np.ndarray] | None,
) -> Prepared:
    """The ``prepare`` hook of a CPU backend.

    A float network only passes :func:`tvmtune.passes.pipeline.prepare`. So does a network of
    ``--dtype int8`` in its quantized ONNX form, for targets with integer instructions; for others, and
    without an ONNX form, it is quantized by :func:`prepare_int8`. Raises :class:`UsageError` for
    calibration data that a float network does not need, and as :func:`prepare_int8` does.
    """
    from tvmtune.passes import pipeline

    if int8.is_wanted(network):
        if dot_instructions.for_bytes(device.target) is not None:
            quantized = _calibrated(network, calibration)
            if quantized is not None:
                return pipeline.prepare(quantized, device, layout or "NHWC")
        return prepare_int8(network, device, layout, calibration)
    if calibration is not None:
        raise UsageError("--calibration is for --dtype int8: add that, or omit --calibration")
    return pipeline.prepare(network, device, layout or "NHWC")


def _calibrated(
    network: Network, calibration: Mapping[str, np.ndarray] | None
) -> Int8Network | None:
    """None if it has no ONNX form."""
    assert isinstance(network, Int8Network)
    if network.is_calibrated:
        return network
    if calibration is not None:
        samples = calibrate.split_runs(network, calibration, "the calibration data")
        data = network.options.data
    else:
        samples, data = calibrate.random_samples(network), "random inputs"
    quantized = network.calibrated(samples, data)
    if quantized is not None and calibration is None:
        calibrate.warn_of_random_samples(network)
    return quantized


def prepare_int8(
    network: Network,
    device: Device,
    layout: str | None,
    calibration: Mapping[str, np.ndarray] | None,
) -> Prepared:
    """The network with int8 kernels in its graph in place of all layers that have one.

    Raises :class:`UsageError` for calibration data that do not fit and for another layout than NCHW;
    :class:`TvmtuneError` for a network without such a layer.
    """
    prepared = prepare_float_graph(network, device, layout)
    layers = _supported_layers(find_region(prepared.graph, name=network.name, widest=True).layers)
    if not layers:
        raise TvmtuneError(f"no layer of {network.name} can be computed in int8: omit --dtype int8")
    quantized = quantize_network(prepared, layers, calibration)
    parts = groups.partition(prepared.graph, layers)
    graph = groups.replace(prepared.graph, parts, cpu_kernels.GroupEmitter(quantized).emit)
    return Prepared(quantized, device, prepared.layout, graph)


def extract_tasks(
    prepared: Prepared,
    device: Device,
    implementations: Sequence[Algorithm | ExtraSpace] | None = None,
) -> list[Task]:
    """As :func:`tvmtune.tasks.extract.extract_tasks`; of an int8 network, only the integer kernels.

    Its float kernels keep their default schedules: other schedules sum in another order, and
    quantizing turns a difference in a float's last bit into a whole step.
    """
    from tvmtune.tasks import extract

    tasks = extract.extract_tasks(prepared, device, implementations=implementations)
    if not isinstance(prepared.network, QuantizedNetwork):
        return tasks
    return [task for task in tasks if {"uint8"} <= _dtypes(task) <= {"uint8", "int8", "int32"}]


def _dtypes(task: Task) -> set[str]:
    return {arg.dtype for arg in task.args}


def _supported_layers(candidates: tuple[Layer, ...]) -> list[Layer]:
    """The layers that have kernels. Sums of which neither operand is quantized stay in float."""
    layers: list[Layer] = []
    computed: set[str] = set()
    for layer in candidates:
        if isinstance(layer, ConvolutionLayer):
            supported = cpu_kernels.supports(layer)
        else:
            supported = bool(computed & set(layer.inputs))
        if supported:
            layers.append(layer)
            computed.add(layer.output)
    return layers
