"""Logs with known numbers for the tests of reports."""

from __future__ import annotations

import random
from pathlib import Path

from records.sample_log import device, header, task, trial, verdict
from tvmtune.records.log import LogWriter

HOSTILE = "<script>window.ran=1</script><img src=x onerror=window.ran=2>&\"'</textarea>"
"""A name that must be shown as it is."""
STARTED = 1.7e9


def write(path: Path, *, factor: float = 1.0, seed: int = 0) -> Path:
    """Two runs of three tasks with two implementations, failures, a wrong answer, second measurements
    and drift. ``factor`` scales all latencies."""
    draw = random.Random(seed)

    def repeats(middle: float, count: int = 10) -> list[float]:
        return [factor * middle * draw.uniform(0.98, 1.02) for _ in range(count)]

    wrong = trial("c", "wrong", *repeats(0.1e-3), time=STARTED + 61)
    with LogWriter(path) as writer:
        writer.append(
            "header", header(peak_gflops=200.0, started=STARTED, versions={"numpy": "2.0"})
        )
        for index, key in enumerate("abc"):
            described = {"index": index, "weight": index + 1, "flop": 1e8, "name": f"fused_{key}"}
            if key == "c":
                described["name"] = HOSTILE
            described["args"] = [[[1, 64], "float32"], [[64, 64], "int8"], [[1, 64], "float32"]]
            writer.append("task", task(key) | described)
        for number in range(30):
            key, name = "abc"[number % 3], ("direct", "winograd")[number % 2]
            of = {"implementation": name, "time": STARTED + number + 1, "tuner": "xgb"}
            if number % 10 == 9:
                error = {"stage": "build", "message": f"{HOSTILE} at {number}"}
                writer.trial(trial(key, f"{number}", error=error, **of))
            else:
                writer.trial(trial(key, f"{number}", *repeats(4e-3 / (number + 1)), **of))
            if number % 5 == 0:
                ratio = 1.3 if number == 15 else 1.0
                writer.append("drift", {"ratio": ratio, "time": STARTED + number + 1})
        writer.append("header", header(peak_gflops=190.0, started=STARTED + 60))
        writer.trial(wrong)
        writer.append("verdict", verdict(wrong, False, "off by 0.5"))
        last = trial("a", "last", *repeats(0.1e-3), time=STARTED + 63, extra={"drift": 1.3})
        writer.trial(last)
        writer.append("verdict", verdict(last, True))
    return path


def distilled(path: Path) -> Path:
    with LogWriter(path) as writer:
        writer.append("header", header(device(threads=1), distilled=True))
        writer.append("task", task("a") | {"index": 0, "weight": 2, "flop": 1e8})
        writer.trial(trial("a", "1", 1e-3))
    return path
