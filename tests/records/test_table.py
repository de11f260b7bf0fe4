"""Logs as tables: every number is the log's."""

from __future__ import annotations

from math import isnan

import pytest

from records.sample_log import device, header, task, trial, verdict
from tvmtune.records import table
from tvmtune.records.log import LogWriter, read_log


@pytest.fixture
def path(tmp_path):
    """Two runs of two tasks, with a failure, a wrong answer, a second measurement and drift."""
    path = tmp_path / "log.json"
    wrong = trial("b", "4", 0.5e-3, time=104.0)
    with LogWriter(path) as writer:
        writer.append("header", header(peak_gflops=100.0, started=100.0))
        writer.append("task", task("a") | {"index": 0, "weight": 3, "flop": 2e8})
        writer.append("task", task("b") | {"index": 1, "weight": 1, "flop": 0.0})
        writer.trial(trial("a", "1", 4e-3, 6e-3, tuner="default", time=101.0))
        writer.append("drift", {"ratio": 1.02, "time": 101.5})
        writer.append("drift", {"ratio": "fast", "time": 101.5})
        writer.trial(trial("b", "2", 1e-3, time=102.0))
        writer.append("header", header(peak_gflops=90.0, started=103.0))
        writer.trial(trial("a", "3", time=103.5))
        writer.trial(wrong)
        writer.append("verdict", verdict(wrong, False, "off by 0.5"))
        writer.trial(trial("a", "5", 2e-3, extra={"drift": 1.3}, time=105.0))
    return path


def test_trials(path):
    made = table.trials(path)
    assert list(made) == list(table.TRIAL_COLUMNS)
    assert {len(column) for column in made.values()} == {5}
    assert made["run"] == [1, 1, 2, 2, 2]
    assert made["trial"] == [1, 2, 3, 4, 5]
    assert made["name"] == ["fused_a", "fused_b", "fused_a", "fused_b", "fused_a"]
    assert made["latency_ms"] == [5.0, 1.0, None, None, 2.0]
    assert made["stage"] == [None, None, "build", "wrong-answer", None]
    assert made["message"][3] == "off by 0.5"
    assert made["slowdown"] == [None, None, None, None, 1.3]
    assert made["gflops"][0] == pytest.approx(2e8 / 5e-3 / 1e9)
    assert made["gflops"][1] is None
    assert made["best_ms"] == [5.0, 1.0, 5.0, 1.0, 2.0]
    assert made["estimate_ms"] == [None, 16.0, 16.0, 16.0, 7.0]


def test_tasks(path):
    made = table.tasks(read_log(path))
    assert list(made) == list(table.TASK_COLUMNS)
    assert made["task"] == [0, 1]
    assert made["trials"] == [3, 2]
    assert made["failed"] == [1, 1]
    assert made["first_ms"] == [5.0, 1.0]
    assert made["best_ms"] == [2.0, 1.0]
    assert made["share"] == pytest.approx([6 / 7, 1 / 7])
    assert made["of_peak"][0] == pytest.approx(1.0)
    assert made["of_peak"][1] is None


def test_several_logs_and_devices_are_kept_apart(path, tmp_path):
    other = tmp_path / "other.json"
    with LogWriter(other) as writer:
        writer.append("header", header(device(threads=1)))
        writer.trial(trial("a", "1", 1e-3))
        writer.trial(trial("a", "2", 3e-3, kind="modelled"))
    made = table.trials([path, other])
    assert made["log"] == [str(path)] * 5 + [str(other)] * 2
    assert made["best_ms"][5:] == [1.0, 3.0]
    assert made["estimate_ms"][5:] == [None, None], "a log without weights has no estimate"
    assert len(set(made["device"])) == 2
    assert len(table.tasks([path, other])["task"]) == 4


def test_a_log_of_several_networks_has_no_estimate(path):
    with LogWriter(path) as writer:
        record = header()
        writer.append("header", record | {"network": {"name": "two", "structure_hash": "7" * 16}})
        writer.trial(trial("a", "6", 1e-3))
    assert set(table.trials(path)["estimate_ms"]) == {None}
    assert set(table.tasks(path)["share"]) == {None}


def test_the_drift_readings_are_read(path):
    log = read_log(path)
    assert log.starts == [0, 2]
    assert log.drift == [(0, 101.5, 1.02)], "a damaged reading is left out"


def test_columns_fit_a_data_frame(path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(table.trials(path))
    assert frame["latency_ms"].min() == 1.0
    assert isnan(frame["latency_ms"][2])
