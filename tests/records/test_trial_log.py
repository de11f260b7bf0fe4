"""Logs from Python: tables for pandas and polars, Kernel Tuner's format."""

from __future__ import annotations

import json
import subprocess
import sys
from math import isnan
from pathlib import Path

import pytest
from click.testing import CliRunner

import tvmtune
from records.sample_log import device, header, task, trace, trial, verdict
from tvmtune.cli.distill import command
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.records import table
from tvmtune.records.log import LogWriter
from tvmtune.types import Stage

STAGES = [stage for stage in Stage.__args__ if stage != "wrong-answer"]


@pytest.fixture
def path(tmp_path) -> Path:
    """Failures of every stage, a wrong answer, and only then a trial that succeeds."""
    path = tmp_path / "log.json"
    wrong = trial("b", "wrong", 0.5e-3, time=104.0)
    with LogWriter(path) as writer:
        writer.append("header", header())
        writer.append("task", task("a") | {"index": 0, "weight": 3, "flop": 2e8})
        for stage in STAGES:
            writer.trial(trial("a", stage, error={"stage": stage, "message": f"at {stage}"}))
        writer.trial(wrong)
        writer.append("verdict", verdict(wrong, False, "off by 0.5"))
        writer.trial(trial("a", "good", 4e-3, 6e-3, trace=trace(8), time=101.5))
    return path


def test_a_log_is_read_by_its_name_and_as_it_grows(path):
    before = tvmtune.read_log(str(path)).table()
    with path.open("a") as file:
        file.write('{"type":"trial","task":"a","impl')
    log = tvmtune.read_log(path)
    assert log.torn
    assert log.table() == before
    with LogWriter(path) as writer:
        writer.trial(trial("a", "new", 1e-3))
    assert tvmtune.read_log(path).table()["candidate"][-1] == "new"
    with pytest.raises(TvmtuneError, match=r"nowhere\.json"):
        tvmtune.read_log("nowhere.json")


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_hold_the_table(path, library):
    pytest.importorskip(library)
    log = tvmtune.read_log(path)
    frame = getattr(log, f"to_{library}")()
    assert list(frame.columns) == list(table.TRIAL_COLUMNS)
    assert len(frame) == len(STAGES) + 2
    assert frame["latency_ms"].min() == 5.0
    assert isnan(next(iter(frame["latency_ms"])) or float("nan"))
    assert list(frame["message"])[:2] == [f"at {stage}" for stage in STAGES[:2]]
    assert list(frame["estimate_ms"])[-1] == 15.0
    fastest = frame["ok"]
    assert fastest.sum() == 1
    tasks = __import__(library).DataFrame(log.task_table())
    assert list(tasks["failed"]) == [len(STAGES), 1]


def test_numbers_are_numbers_though_a_column_begins_with_hundreds_of_failures(tmp_path):
    polars = pytest.importorskip("polars")
    path = tmp_path / "log.json"
    with LogWriter(path) as writer:
        writer.append("header", header())
        for number in range(300):
            writer.trial(trial("a", f"bad{number}"))
        writer.trial(trial("a", "good", 2e-3))
    frame = tvmtune.read_log(path).to_polars()
    assert frame["latency_ms"].dtype == polars.Float64
    assert frame["latency_ms"].max() == 2.0


def test_a_missing_library_is_named_and_the_table_needs_none(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="pip install pandas"):
        tvmtune.read_log(path).to_pandas()
    code = (
        "import sys, tvmtune; tvmtune.read_log(sys.argv[1]).table(); "
        "sys.exit(' '.join({'pandas', 'polars', 'tvm', 'torch'} & sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_t4_results_say_what_the_log_says(path):
    document = tvmtune.read_log(path).to_t4()
    results = document["results"]
    assert [r["invalidity"] for r in results] == [
        "constraints",
        "compile",
        "timeout",
        "runtime",
        "runtime",
        "correctness",
        "correct",
    ]
    assert [r["correctness"] for r in results] == [1, 1, 1, 1, 1, 0, 1]
    good = results[-1]
    assert good["timestamp"] == "1970-01-01T00:01:41.500000+00:00"
    assert good["configuration"] == {
        "task": "fused_a",
        "implementation": "direct",
        "device": device().identity(),
        "l1": [8, 8],
    }
    assert good["times"] == {"runtimes": [4.0, 6.0]}
    assert good["measurements"] == [
        {"name": "time", "value": 5.0, "unit": "ms"},
        {"name": "GFLOP/s", "value": pytest.approx(40.0), "unit": "GFLOP/s"},
    ]
    assert results[0]["measurements"] == []


def test_t4_results_follow_the_schema_of_kernel_tuner(path):
    """The schema is the one in Kernel Tuner's package, copied beside this test."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(Path(__file__).with_name("t4-results-schema.json").read_text())
    document = json.loads(json.dumps(tvmtune.read_log(path).to_t4()))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document, schema)
    document["results"][0]["invalidity"] = "crash"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)


def distill(*arguments):
    return CliRunner().invoke(command, [*map(str, arguments)])


def test_distill_writes_the_best_records_for_kernel_tuner(path, tmp_path):
    for _ in range(2):  # it replaces its own output
        done = distill(path, "--format", "kernel-tuner")
        assert done.exit_code == 0, done.output
    document = json.loads((tmp_path / "log.t4.json").read_text())
    assert document == tvmtune.read_log(path).to_t4() | {"results": document["results"]}
    assert [r["configuration"]["task"] for r in document["results"]] == ["fused_a"]
    assert document["results"] == tvmtune.read_log(path).to_t4()["results"][-1:]


def test_distill_for_kernel_tuner_damages_nothing(path, tmp_path):
    mine = tmp_path / "mine.json"
    mine.write_text('{"thesis": 1}')
    for output, message in ((path, "is a file that this command needs"), (mine, "--force")):
        before = output.read_bytes()
        done = distill(path, "--format", "kernel-tuner", "-o", output)
        assert isinstance(done.exception, UsageError)
        assert message in str(done.exception)
        assert output.read_bytes() == before
    assert distill(path, "--format", "kernel-tuner", "-o", mine, "--force").exit_code == 0


def test_distill_names_a_directory_that_is_no_database(tmp_path):
    done = distill(tmp_path)
    assert isinstance(done.exception, UsageError)
    assert "not that of a MetaSchedule database" in str(done.exception)
