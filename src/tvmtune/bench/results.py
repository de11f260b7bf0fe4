"""Results of the bench: each runtime's times and statistics, and the report with its JSON form."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tvmtune.bench.end_to_end import EndToEndTime
    from tvmtune.bench.verify import CheckResult
    from tvmtune.types import JSON


@dataclass
class RuntimeResult:
    """One runtime's times, and how they were measured."""

    runtime: str
    version: str
    threads: int
    number: int
    """Calls per repeat."""
    batch: int
    """Items per call."""
    seconds: list[float] = field(default_factory=list)
    """Seconds per call, one value per repeat."""
    device_seconds: list[float] = field(default_factory=list)
    """The same by the GPU's clock; empty if it has none that can be read."""
    ratio: float = 1.0
    """Its latency over that of the library: 2 means that the library is twice as fast."""
    error: float | None = None
    """max|y - ref| / max|ref| of the library's outputs, with this runtime's as the reference."""
    modelled: EndToEndTime | None = None
    """Its time with a simulated accelerator, whose ``seconds`` are the simulation's."""
    check: CheckResult | None = None
    device: str = "cpu"
    """TVM's name of the device that it runs on."""

    @property
    def median_ms(self) -> float:
        return 1e3 * statistics.median(self.seconds)

    @property
    def mean_ms(self) -> float:
        return 1e3 * statistics.fmean(self.seconds)

    @property
    def std_ms(self) -> float:
        """Standard deviation of the sample; 0 for a single repeat."""
        return 1e3 * statistics.stdev(self.seconds) if len(self.seconds) > 1 else 0.0

    @property
    def p95_ms(self) -> float:
        return 1e3 * float(np.percentile(self.seconds, 95))

    @property
    def min_ms(self) -> float:
        return 1e3 * min(self.seconds)

    @property
    def device_ms(self) -> float | None:
        """The median by the GPU's clock; None if that cannot be read."""
        return 1e3 * statistics.median(self.device_seconds) if self.device_seconds else None

    @property
    def latency_ms(self) -> float:
        """The median, or the modeled time where an accelerator is simulated."""
        return self.median_ms if self.modelled is None else self.modelled.total_ms

    @property
    def throughput(self) -> float:
        """Items per second at the latency."""
        return 1e3 * self.batch / self.latency_ms

    def to_json(self) -> JSON:
        result: JSON = {
            "runtime": self.runtime,
            "version": self.version,
            "threads": self.threads,
            "device": self.device,
            "median_ms": self.median_ms,
            "mean_ms": self.mean_ms,
            "std_ms": self.std_ms,
            "p95_ms": self.p95_ms,
            "min_ms": self.min_ms,
            "device_ms": self.device_ms,
            **({} if self.modelled is None else {"modelled_ms": self.modelled.total_ms}),
            "throughput": self.throughput,
            "repeats": len(self.seconds),
            "number": self.number,
            "ratio": self.ratio,
            "error": self.error if self.error is None or np.isfinite(self.error) else None,
        }
        if self.check is not None:
            result["check"] = self.check.to_json()
        return result


@dataclass
class BenchResult:
    """The library's run first, then the peers' in the order in which they were named."""

    runs: list[RuntimeResult]
    network: JSON
    device: JSON
    host: JSON
    board: JSON | None = None
    """Key and description of the board that it was measured on; None on this machine."""
    notes: list[str] = field(default_factory=list)
    """What a reader of the numbers should know: skipped peers, unsteady times."""
    background_load: float | None = None
    """Fraction of all CPUs' time that other processes used meanwhile; None if unknown."""
    time: float = field(default_factory=time.time)
    """When it was measured, in seconds since the epoch."""

    @property
    def modelled(self) -> EndToEndTime | None:
        """Where the library's time goes; only for simulated accelerators."""
        return self.runs[0].modelled

    def to_json(self) -> JSON:
        return {
            "runs": [run.to_json() for run in self.runs],
            "network": self.network,
            "device": self.device,
            "host": self.host,
            "notes": self.notes,
            "background_load": self.background_load,
            "time": self.time,
            **({} if self.board is None else {"board": self.board}),
            **({} if self.modelled is None else {"modelled": self.modelled.to_json()}),
        }
