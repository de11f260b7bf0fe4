"""What quantization costs: the error of each layer and of the whole network, against float."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tvmtune.accuracy import relative_error
from tvmtune.errors import TvmtuneError
from tvmtune.networks.onnx.calibration import Sample, runner

if TYPE_CHECKING:
    import onnx

    from tvmtune.networks.onnx.integer_layers import Layer

SAMPLES = 4
"""Samples that errors are measured on, at most."""


@dataclass(frozen=True)
class Errors:
    """Of a quantized network."""

    sqnr: dict[str, float | None]
    """By layer: the signal-to-quantization-noise ratio of its result, before that is rounded, in dB,
    with all layers before it quantized; None without noise or without signal."""
    error: float
    """max|y - float| / max|float|, the worst of the network's outputs and samples."""


class Comparison:
    """Compares quantized forms of a model with its float form."""

    def __init__(
        self,
        model: onnx.ModelProto,
        name: str,
        layers: Sequence[Layer],
        samples: Sequence[Sample],
    ) -> None:
        self._model, self._name = model, name
        self._layers, self._samples = layers, samples[:SAMPLES]
        self._outputs = [info.name for info in model.graph.output]
        self._tensors = [*(layer.output for layer in layers), *self._outputs]
        self._run = runner(model, name, self._tensors)

    @functools.cached_property
    def _wanted(self) -> list[list[np.ndarray]]:
        """The float network's outputs for each sample; only a budget needs them again and again."""
        return list(runner(self._model, self._name, self._outputs)(self._samples))

    def errors(self, quantized: onnx.ModelProto) -> Errors:
        """Of all layers and the network."""
        count = len(self._layers)
        signal, noise, worst = np.zeros(count), np.zeros(count), 0.0
        run = runner(quantized, self._name, self._tensors)
        # In step: the values of one sample are in memory, not those of all.
        for got, wanted in zip(run(self._samples), self._run(self._samples), strict=True):
            for place in range(count):
                one, other = (each[place].astype(np.float64) for each in (got, wanted))
                signal[place] += np.sum(other**2)
                noise[place] += np.sum((one - other) ** 2)
            worst = max(worst, _worst(got[count:], wanted[count:]))
        sqnr = {
            layer.name: 10 * math.log10(s / n) if s > 0 and n > 0 else None
            for layer, s, n in zip(self._layers, signal, noise, strict=True)
        }
        return Errors(sqnr, worst)

    def error(self, quantized: onnx.ModelProto, count: int = SAMPLES) -> float:
        """Of the network, on the first ``count`` samples."""
        run = runner(quantized, self._name, self._outputs)
        pairs = zip(run(self._samples[:count]), self._wanted[:count], strict=True)
        return max(_worst(got, wanted) for got, wanted in pairs)


def _worst(outputs: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> float:
    return max(relative_error(*pair) for pair in zip(outputs, wanted, strict=True))


def within_budget(
    comparison: Comparison,
    write: Callable[[Collection[str]], onnx.ModelProto],
    layers: Sequence[Layer],
    budget: float,
    name: str,
) -> set[str]:
    """The names of the layers that have to stay in float for an error of at most ``budget``.

    ``write`` makes the quantized form without some layers. Layers go in the order of the error that
    each causes alone. Raises :class:`TvmtuneError` if none could stay in int8.
    """
    names = [layer.name for layer in layers]
    if comparison.error(write(())) <= budget:
        return set()
    alone = {
        layer: comparison.error(write([other for other in names if other != layer]), count=1)
        for layer in names
    }
    worst = sorted(names, key=lambda layer: -alone[layer])
    few, enough = 0, len(worst)
    while enough - few > 1:
        middle = (few + enough) // 2
        if comparison.error(write(worst[:middle])) <= budget:
            enough = middle
        else:
            few = middle
    if enough == len(worst):
        raise TvmtuneError(
            f"no layer of {name} can be computed in int8 with an error of at most {budget:g}, not even "
            f"'{worst[-1]}' alone: raise --accuracy-budget, or omit --dtype int8"
        )
    return set(worst[:enough])
