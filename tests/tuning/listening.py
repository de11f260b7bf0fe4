"""A tuner that remembers what sessions gave it, and draws at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmtune.tuning.tuners import sampling
from tvmtune.tuning.tuners.base import Proposal, Tuner, TunerArgs

OPTIONS: dict[str, int | float] = {}
asked: list[tuple[str, int, float | None]] = []
"""Workload, count and seconds of each request."""
relatives: dict[str, list[Any]] = {}
"""What each workload's first request was given, in the order of these requests."""
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
        if self.args.implementation.workload_key not in relatives:
            relatives[self.args.implementation.workload_key] = list(self.args.relatives())
        asked.append((self.args.implementation.workload_key, count, seconds))
        return super().ask(count, seconds)


def create(args: TunerArgs) -> Tuner:
    return ListeningTuner(args)


def register(monkeypatch: Any) -> None:
    """Make it known as ``listening`` for the length of a test."""
    from tvmtune.tuning import tuners

    monkeypatch.setitem(tuners.TUNERS, "listening", "tuning.listening")
    asked.clear()
    heard.clear()
    relatives.clear()
