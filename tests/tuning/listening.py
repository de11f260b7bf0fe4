"""A random tuner that records what sessions pass to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmtune.tuning.tuners import sampling
from tvmtune.tuning.tuners.base import Proposal, Tuner, TunerArgs

OPTIONS: dict[str, int | float] = {}
asked: list[tuple[str, int, float | None]] = []
"""Workload, count and time limit of each request."""
warm_start: dict[str, list[Any]] = {}
"""Warm start of each workload at its first request, in the order of these requests."""
heard: dict[str, float] = {}
"""The latest latency of each candidate."""


class ListeningTuner(sampling.RandomTuner):
    def tell(self, proposals: Sequence[Proposal], latencies: Sequence[float]) -> None:
        heard.update((p.candidate, s) for p, s in zip(proposals, latencies, strict=True))
        super().tell(proposals, latencies)

    def revise(self, candidate: str, latency: float) -> None:
        heard[candidate] = latency
        super().revise(candidate, latency)

    def ask(self, count: int, seconds: float | None = None) -> list[Proposal]:
        if self.args.implementation.workload_key not in warm_start:
            warm_start[self.args.implementation.workload_key] = list(self.args.warm_start())
        asked.append((self.args.implementation.workload_key, count, seconds))
        return super().ask(count, seconds)


def create(args: TunerArgs) -> Tuner:
    return ListeningTuner(args)


def register(monkeypatch: Any) -> None:
    """Register it as ``listening`` for one test."""
    from tvmtune.tuning import tuners

    monkeypatch.setitem(tuners.TUNERS, "listening", "tuning.listening")
    asked.clear()
    heard.clear()
    warm_start.clear()
