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

    from tvmtune.networks.quantization import Calibration

Sample = Mapping[str, np.ndarray]
"""The inputs of one run, by name."""
Run = Callable[[Sequence[Sample]], Iterator[list[np.ndarray]]]
"""From samples to the values of some tensors, sample by sample."""

BINS = 2048
"""Of a tensor's histogram."""
OUTERMOST = 1e-4
"""The share of values at either end that ``percentile`` leaves out."""
_STRIDE = 8
"""Bins by which the thresholds that ``entropy`` tries differ."""


def ranges(
    model: onnx.ModelProto,
    name: str,
    tensors: Sequence[str],
    samples: Sequence[Sample],
    options: Calibration,
) -> dict[str, Range]:
    """The range of each tensor of a model whose values are computed in float.

    Raises :class:`TvmtuneError` for values that are not finite.
    """
    run = runner(model, name, tensors)
    whole = _extremes(run, tensors, samples)
    if options.global_scale is not None:
        reach = options.global_scale
        return {
            each: Range(-reach if bounds.low < 0 else 0.0, reach) for each, bounds in whole.items()
        }
    if options.method == "minmax":
        return whole
    if options.method == "percentile":
        counts = _histograms(run, tensors, samples, whole)
        return {each: _percentile(counts[each], whole[each]) for each in tensors}
    # Zeros are exact in any range, and half of the values behind a ReLU.
    sizes = {each: Range(0.0, max(map(abs, bounds))) for each, bounds in whole.items()}
    counts = _histograms(run, tensors, samples, sizes, lambda values: np.abs(values[values != 0]))
    return {each: _entropy(counts[each], whole[each]) for each in tensors}


def _extremes(run: Run, tensors: Sequence[str], samples: Sequence[Sample]) -> dict[str, Range]:
    found: dict[str, Range] = {}
    for outputs in run(samples):
        for tensor, values in zip(tensors, outputs, strict=True):
            low, high = float(values.min(initial=np.inf)), float(values.max(initial=-np.inf))
            if not np.isfinite([low, high]).all():
                raise TvmtuneError(
                    f"calibration gave values of {tensor} that are not finite: check the data of "
                    "--calibration"
                )
            before = found.get(tensor, Range(low, high))
            found[tensor] = Range(min(low, before.low), max(high, before.high))
    return found


def _histograms(
    run: Run,
    tensors: Sequence[str],
    samples: Sequence[Sample],
    bounds: Mapping[str, Range],
    view: Callable[[np.ndarray], np.ndarray] = lambda values: values,
) -> dict[str, np.ndarray]:
    """Of a ``view`` of each tensor's values, within its ``bounds``."""
    counts = {tensor: np.zeros(BINS) for tensor in tensors}
    for outputs in run(samples):
        for tensor, values in zip(tensors, outputs, strict=True):
            counts[tensor] += np.histogram(view(values), BINS, bounds[tensor])[0]
    return counts


def _percentile(counts: np.ndarray, whole: Range) -> Range:
    """Without the :data:`OUTERMOST` values."""
    edges = np.linspace(*whole, BINS + 1)
    below = np.cumsum(counts) / counts.sum()
    low = edges[int(np.searchsorted(below, OUTERMOST, side="right"))]
    high = edges[int(np.searchsorted(below, 1 - OUTERMOST)) + 1]
    return Range(float(low), float(high))


def _entropy(hist: np.ndarray, whole: Range) -> Range:
    """The threshold of magnitudes, whose histogram this is, from which bytes lose the least information
    (Migacz, "8-bit Inference with TensorRT", 2017)."""
    reach = max(map(abs, whole))
    levels = 128 if whole.low < 0 < whole.high else 255
    best, kept = np.inf, BINS
    for size in (*range(levels, BINS, _STRIDE), BINS):
        clipped = hist[:size].copy()
        clipped[-1] += hist[size:].sum()
        divergence = _divergence(clipped, _in_levels(hist[:size], levels))
        if divergence < best:
            best, kept = divergence, size
    threshold = reach * kept / BINS
    return Range(max(whole.low, -threshold), min(whole.high, threshold))


def _in_levels(hist: np.ndarray, levels: int) -> np.ndarray:
    """A histogram whose bins have the mean of those that a level stands for; empty ones stay empty."""
    level = np.arange(len(hist)) * levels // len(hist)
    filled = (hist > 0).astype(np.float64)
    sums, sizes = np.bincount(level, hist, levels), np.bincount(level, filled, levels)
    return (sums / np.maximum(sizes, 1))[level] * filled


def _divergence(wanted: np.ndarray, got: np.ndarray) -> float:
    """Kullback-Leibler, infinite if ``got`` excludes what occurs."""
    if not got.sum():
        return float(np.inf)
    occurs = wanted > 0
    p, q = wanted[occurs] / wanted.sum(), got[occurs] / got.sum()
    if not q.all():
        # The last bin has what was clipped; without values of its own it has no level.
        q = np.maximum(q, np.finfo(np.float64).tiny)
    return float(np.sum(p * np.log(p / q)))


def runner(model: onnx.ModelProto, name: str, tensors: Sequence[str]) -> Run:
    """A function from samples to the values of these tensors, by the network's reference."""
    import onnx

    inputs = {info.name for info in model.graph.input}
    computed = list(dict.fromkeys(tensor for tensor in tensors if tensor not in inputs))
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    known = {info.name: info for info in model.graph.output}
    del probe.graph.output[:]
    for tensor in computed:
        if tensor in known:
            probe.graph.output.append(known[tensor])
        else:
            info = probe.graph.output.add(name=tensor)
            info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    network = OnnxNetwork(probe, name=name) if computed else None

    def run(samples: Sequence[Sample]) -> Iterator[list[np.ndarray]]:
        results = network.references(samples) if network else iter([[] for _ in samples])
        for sample, outputs in zip(samples, results, strict=True):
            values = dict(sample) | dict(zip(computed, outputs, strict=True))
            yield [np.asarray(values[tensor]) for tensor in tensors]

    return run
