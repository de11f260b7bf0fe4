"""Second measurements of trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from records import sample_log
from tvmtune.errors import TvmtuneError
from tvmtune.records.best import distill
from tvmtune.records.log import LogWriter, read_log
from tvmtune.types import Trial


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A normal trial, and one measured while the machine was slow."""
    slow = sample_log.trial("b", "2", 4.0, 5.0, extra={"drift": 1.3})
    return sample_log.write(tmp_path / "log.json", sample_log.trial("a", "1", 1.0, 2.0), slow)


def again(log: Path, key: str, candidate: str, *seconds: float, **more: Any) -> None:
    line = {"workload": f"w-{key}", "candidate": candidate, "seconds": list(seconds), "time": 0.0}
    with LogWriter(log) as writer:
        writer.append("remeasure", {k: v for k, v in (line | more).items() if v is not None})


def trials(log: Path) -> dict[str, Trial]:
    return {t.task: t for t in read_log(log).trials}


def test_the_median_of_both_measurements_is_used(log):
    again(log, "a", "1", 3.0, 3.0, 3.0)
    again(log, "a", "1", 3.0)
    repeated = trials(log)["a"]
    assert repeated.seconds == [1.0, 2.0, 3.0, 3.0, 3.0, 3.0]
    assert repeated.latency == 3.0
    assert repeated.extra == {"remeasured": 4}
    assert trials(log)["b"].seconds == [4.0, 5.0]


def test_repeats_measured_on_a_slow_machine_are_replaced(log):
    assert trials(log)["b"].extra == {"drift": 1.3}
    again(log, "b", "2", 3.0, 3.5)
    repeated = trials(log)["b"]
    assert repeated.seconds == [3.0, 3.5]
    assert repeated.extra == {"remeasured": 2}


def test_it_applies_to_one_candidate_of_one_workload_on_one_device(log):
    again(log, "a", "2", 9.0)
    again(log, "c", "1", 9.0)
    with LogWriter(log) as writer:
        writer.append("header", sample_log.header(sample_log.device(threads=7)))
    again(log, "a", "1", 9.0)
    assert trials(log)["a"].seconds == [1.0, 2.0]


def test_a_distilled_log_holds_the_repeats_of_both(log, tmp_path):
    again(log, "a", "1", 3.0)
    distill([read_log(log)], tmp_path / "best.json")
    repeated = trials(tmp_path / "best.json")["a"]
    assert repeated.seconds == [1.0, 2.0, 3.0]
    assert repeated.extra == {"remeasured": 1}


def test_a_line_without_its_seconds_is_rejected(log):
    again(log, "a", "1", seconds=None)
    with pytest.raises(TvmtuneError, match=r"line \d+ lacks a required field"):
        read_log(log)
