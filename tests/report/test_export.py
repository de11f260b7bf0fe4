"""Tables and pictures beside the page."""

from __future__ import annotations

import csv

import pytest

from tvmtune.errors import UsageError
from tvmtune.records import table
from tvmtune.records.log import read_log
from tvmtune.report import export
from tvmtune.report.page import Report


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_csv_holds_what_the_log_holds(path, tmp_path):
    log = read_log(path)
    trials, tasks = map(read, export.write_csv([log], tmp_path / "tables"))
    assert [r["candidate"] for r in trials] == [t.candidate for t in log.trials]
    for row, trial in zip(trials, log.trials, strict=True):
        assert row["latency_ms"] == (str(trial.latency * 1e3) if trial.ok else "")
        assert row["ok"] == str(trial.ok).lower()
    assert list(tasks[0]) == list(table.TASK_COLUMNS)
    assert len(tasks) == 3


def test_csv_to_a_file_puts_the_tasks_beside_it(log, tmp_path):
    paths = export.write_csv([log], tmp_path / "all.csv")
    assert [p.name for p in paths] == ["all.csv", "all.tasks.csv"]
    assert all(p.is_file() for p in paths)


def test_a_file_in_the_way_is_kept(log, tmp_path):
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(UsageError, match="no directory"):
        export.write_csv([log], tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.slow
def test_every_chart_becomes_a_picture(log, tmp_path):
    report = Report([log, log])
    paths = export.write_png(report.charts(), tmp_path / "pictures")
    names = {p.stem for p in paths}
    assert {"s0-estimate-by-trial", "s0-tasks", "s0-roofline", "s0-outcomes", "c0-tasks"} <= names
    for path in paths:
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG") and len(data) > 4000
