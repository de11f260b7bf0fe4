"""Calibration: the range of each tensor that bytes express, from its values on sample inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tvmtune.errors import TvmtuneError
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.networks.onnx.quantize import Range

if TYPE_CHECKING:
    import onnx

Sample = Mapping[str, np.ndarray]
"""The inputs of one run, by name."""


def ranges(
    model: onnx.ModelProto, name: str, tensors: Sequence[str], samples: Sequence[Sample]
) -> dict[str, Range]:
    """From the lowest to the highest value of each tensor of a model, computed in float.

    Raises :class:`TvmtuneError` for values that are not finite.
    """
    found: dict[str, Range] = {}
    for tensor, values in tensor_values(model, name, tensors, samples):
        low, high = float(values.min(initial=np.inf)), float(values.max(initial=-np.inf))
        if not np.isfinite([low, high]).all():
            raise TvmtuneError(
                f"calibration gave values of {tensor} that are not finite: its data are unusable"
            )
        before = found.get(tensor, Range(low, high))
        found[tensor] = Range(min(low, before.low), max(high, before.high))
    return found


def tensor_values(
    model: onnx.ModelProto, name: str, tensors: Sequence[str], samples: Sequence[Sample]
) -> Iterator[tuple[str, np.ndarray]]:
    """The values of each tensor on each sample, sample by sample."""
    run = runner(model, name, tensors)
    for values in run(samples):
        yield from zip(tensors, values, strict=True)


def runner(
    model: onnx.ModelProto, name: str, tensors: Sequence[str]
) -> Callable[[Sequence[Sample]], Iterator[list[np.ndarray]]]:
    """A function from samples to the values of these tensors, by the network's reference."""
    import onnx

    inputs = {info.name for info in model.graph.input}
    computed = [tensor for tensor in tensors if tensor not in inputs]
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    del probe.graph.output[:]
    for tensor in computed:
        info = probe.graph.output.add(name=tensor)
        info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    network = OnnxNetwork(probe, name=name) if computed else None

    def run(samples: Sequence[Sample]) -> Iterator[list[np.ndarray]]:
        results = network.references(samples) if network else ([] for _ in samples)
        for sample, outputs in zip(samples, results, strict=True):
            known = dict(sample) | dict(zip(computed, outputs, strict=True))
            yield [np.asarray(known[tensor]) for tensor in tensors]

    return run
