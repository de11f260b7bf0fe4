"""Libraries of one network that compute in different dtypes, side by side: time and error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tvmtune.accuracy import relative_error
from tvmtune.arrays import numpy_dtype
from tvmtune.bench.baselines import Baseline
from tvmtune.bench.bench import bench
from tvmtune.bench.results import BenchResult, RuntimeResult
from tvmtune.networks.inputs import inputs_of
from tvmtune.remote.client.lease import BoardLease
from tvmtune.runtime.library import Library
from tvmtune.types import JSON, Device

if TYPE_CHECKING:
    from tvmtune.types import Network

SAMPLES = 16
"""Inputs that errors are computed from, at most."""


class Variant(Baseline):
    """The library of another dtype, by whose name the bench knows it."""

    def __init__(self, dtype: str, library: Library) -> None:
        super().__init__(library)
        self.name = dtype  # type: ignore[misc]  # of one library, not of the class

    def set_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        super().set_inputs(_converted(inputs, self.library))


@dataclass(frozen=True)
class DtypeResult:
    """The library of one dtype."""

    dtype: str
    path: Path
    time: RuntimeResult
    error: float
    """max|y - ref| / max|ref| over all inputs and outputs; the reference computes in float32."""
    agreement: float | None
    """The share of items whose largest value is where the reference has it; None unless the first
    output is (N, classes)."""

    def to_json(self) -> JSON:
        return {
            "dtype": self.dtype,
            "library": str(self.path),
            "bytes": self.path.stat().st_size,
            "median_ms": self.time.median_ms,
            "latency_ms": self.time.latency_ms,
            "error": self.error if np.isfinite(self.error) else None,
            "agreement": self.agreement,
        }


@dataclass(frozen=True)
class DtypeComparison:
    """The libraries in the order given, the one that the others are compared with first."""

    results: tuple[DtypeResult, ...]
    bench: BenchResult
    samples: int
    """Inputs that the errors were computed from."""
    random: bool
    """Whether these were random ones."""

    @property
    def fastest(self) -> DtypeResult:
        return min(self.results, key=lambda each: each.time.latency_ms)

    def to_json(self) -> JSON:
        return {
            "dtypes": [each.to_json() for each in self.results],
            "samples": self.samples,
            "random_inputs": self.random,
            "notes": self.bench.notes,
            "background_load": self.bench.background_load,
        }


def compare(
    network: Network,
    libraries: Mapping[str, Path],
    device: Device,
    samples: Sequence[Mapping[str, np.ndarray]] = (),
    *,
    repeat: int | None = None,
    wait: float | None = None,
    say: Callable[[str], None] = lambda message: None,
) -> DtypeComparison:
    """Time the libraries in turns, and compare their outputs with those of ``network``'s reference.

    ``network`` computes in float32, as the first of ``libraries`` (by dtype) does; all run on
    ``device``, or on one board of it. ``repeat``, ``wait`` and ``say`` are as in
    :func:`tvmtune.compiling.ship.ship`. ``samples``: inputs for the errors, of which at most
    :data:`SAMPLES` are used; random ones by default.
    """
    inputs = [*samples[:SAMPLES]] or [inputs_of(network, seed) for seed in range(SAMPLES)]
    with contextlib.ExitStack() as stack:
        board = None
        if device.remote is not None:
            board = stack.enter_context(
                BoardLease(device.remote, wait=wait, report=say, identity=device.board)
            )
        opened = {dtype: Library.open(path, board=board) for dtype, path in libraries.items()}
        first, *others = opened.items()
        table = bench(
            first[1],
            inputs=inputs[0],
            repeat=repeat,
            peers=[Variant(*each) for each in others],
            network=network,
        )
        errors = dict.fromkeys(opened, 0.0)
        agreed: dict[str, list[float]] = {dtype: [] for dtype in opened}
        for each in inputs:
            wanted = network.reference(each)
            for dtype, library in opened.items():
                got = library.run(_converted(each, library))
                worst = max(relative_error(y, ref) for y, ref in zip(got, wanted, strict=True))
                errors[dtype] = max(errors[dtype], worst)
                if wanted[0].ndim == 2 and wanted[0].shape[1] > 1:
                    same = got[0].argmax(axis=1) == wanted[0].argmax(axis=1)
                    agreed[dtype].append(float(same.mean()))
    runs = {run.runtime: run for run in table.runs}
    runs[first[0]] = table.runs[0]
    results = [
        DtypeResult(
            dtype,
            libraries[dtype],
            runs[dtype],
            errors[dtype],
            float(np.mean(agreed[dtype])) if agreed[dtype] else None,
        )
        for dtype in opened
        if dtype in runs  # a note says why others are not
    ]
    return DtypeComparison(tuple(results), table, len(inputs), not samples)


def _converted(inputs: Mapping[str, np.ndarray], library: Library) -> dict[str, np.ndarray]:
    """The inputs in the dtypes of a library, whose floats may be narrower."""
    return {spec.name: inputs[spec.name].astype(numpy_dtype(spec.dtype)) for spec in library.inputs}
