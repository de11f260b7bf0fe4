"""Two logs compared: how many times as fast each task is, with confidence intervals.

The interval is a percentile bootstrap of the ratio of medians over the repeats of the best trials of
both logs. It covers the noise of those repeats, not that the best of many is fast partly by chance, nor
a change of the machine between the logs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Any

import numpy as np

from tvmtune.report.charts import label
from tvmtune.report.summary import Row, Section, TaskSummary

RESAMPLES = 2000
LEVEL = 0.95
FEWEST = 5
"""Repeats of a trial below which it gets no interval: resampling so few says nothing."""


@dataclass
class Comparison:
    """Another log against the first; ratios are the first's latency over the other's."""

    first: Section
    other: Section
    rows: list[Row]
    """For each task of both: label, latencies and ratio; low and high are None with too few repeats;
    ``how``: matched by its exact key or by its anchor key."""
    only_first: list[str]
    only_other: list[str]
    total: Row | None
    """Of the sum over the tasks of both: first_ms, other_ms, ratio, low, high, covered (the share of
    the other's sum whose noise the interval covers)."""
    geometric_mean: float | None
    warnings: list[str]


def compare(first: Section, other: Section) -> Comparison:
    pairs, only_first, only_other = _matched(first, other)
    random = np.random.default_rng(0)
    rows: list[Row] = []
    sums = [np.zeros(RESAMPLES), np.zeros(RESAMPLES)]
    totals, covered = [0.0, 0.0], 0.0
    weighted = True
    for before, after, how in pairs:
        assert before.best is not None and after.best is not None
        drawn = [_medians(t.best.seconds, random) for t in (before, after) if t.best]
        weight = before.row["weight"] or 0
        weighted = weighted and bool(weight)
        latencies = [before.best.latency, after.best.latency]
        known = all(len(t.best.seconds) >= FEWEST for t in (before, after) if t.best)
        for n in range(2):
            sums[n] += weight * (drawn[n] if known else latencies[n])
            totals[n] += weight * latencies[n]
        covered += weight * latencies[1] if known else 0.0
        low, high = _interval(drawn[0] / drawn[1]) if known else (None, None)
        rows.append(
            {
                "label": label(after.row),
                "weight": before.row["weight"],
                "weight_ms": weight * latencies[0] * 1e3,
                "first_ms": latencies[0] * 1e3,
                "other_ms": latencies[1] * 1e3,
                "ratio": latencies[0] / latencies[1],
                "low": low,
                "high": high,
                "first_implementation": before.best.implementation,
                "other_implementation": after.best.implementation,
                "how": how,
            }
        )
    total = None
    if rows and weighted and totals[1]:
        low, high = _interval(sums[0] / sums[1]) if covered else (None, None)
        total = {
            "first_ms": totals[0] * 1e3,
            "other_ms": totals[1] * 1e3,
            "ratio": totals[0] / totals[1],
            "low": low,
            "high": high,
            "covered": covered / totals[1],
        }
    mean = exp(sum(log(r["ratio"]) for r in rows) / len(rows)) if rows else None
    return Comparison(
        first, other, rows, only_first, only_other, total, mean, _warnings(first, other)
    )


def _matched(
    first: Section, other: Section
) -> tuple[list[tuple[TaskSummary, TaskSummary, str]], list[str], list[str]]:
    """The tasks of both, by their exact key, else by an anchor key that each log has once."""
    mine = {t.row["key"]: t for t in first.tasks if t.best}
    theirs = {t.row["key"]: t for t in other.tasks if t.best}
    pairs = [(mine[key], theirs[key], "exact") for key in mine if key in theirs]
    left = [t for key, t in mine.items() if key not in theirs]
    right = [t for key, t in theirs.items() if key not in mine]
    anchors = _unique_anchors(right)
    for anchor, task in _unique_anchors(left).items():
        if anchor in anchors:
            pairs.append((task, anchors[anchor], "anchor"))
            left.remove(task)
            right.remove(anchors[anchor])
    return pairs, [label(t.row) for t in left], [label(t.row) for t in right]


def _unique_anchors(tasks: Sequence[TaskSummary]) -> dict[str, TaskSummary]:
    counts = Counter(t.line.get("anchor") for t in tasks)
    return {
        t.line["anchor"]: t for t in tasks if t.line.get("anchor") and counts[t.line["anchor"]] == 1
    }


def _medians(seconds: Sequence[float], random: np.random.Generator) -> Any:
    """Medians of resampled repeats: one value per resample, in seconds."""
    values = np.asarray(seconds, dtype=float)
    return np.median(random.choice(values, (RESAMPLES, len(values))), axis=1)


def _interval(ratios: Any) -> tuple[float, float]:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail])
    return float(low), float(high)


def _warnings(first: Section, other: Section) -> list[str]:
    words = []
    if first.device["identity"] != other.device["identity"]:
        words.append("The devices or their settings differ.")
    if first.kind != other.kind:
        words.append(f"Times of one log are {first.kind}, of the other {other.kind}.")
    hosts = [{str(h.get("host", {}).get("host")) for h in s.headers} for s in (first, other)]
    if hosts[0] != hosts[1]:
        words.append("They were measured by different machines.")
    hashes = [{h["network"].get("structure_hash") for h in s.headers} for s in (first, other)]
    if hashes[0] != hashes[1]:
        words.append("The networks differ: only the tasks that both have are compared.")
    return words
