"""Two logs compared."""

from __future__ import annotations

import random

import pytest

from records.sample_log import device, header, task, trial
from report import sample
from tvmtune.records.log import LogWriter, read_log
from tvmtune.report.compare import RESAMPLES, compare
from tvmtune.report.summary import sections


def one(path, **more):
    (made,) = sections(read_log(sample.write(path, **more)))
    return made


def test_ratios_and_intervals(tmp_path):
    made = compare(one(tmp_path / "a.json"), one(tmp_path / "b.json", factor=0.5, seed=1))
    assert len(made.rows) == 3 and not made.only_first and not made.only_other
    for row in made.rows:
        assert row["ratio"] == pytest.approx(row["first_ms"] / row["other_ms"])
        assert row["low"] <= row["ratio"] <= row["high"]
        assert 1.8 < row["low"] < 2 < row["high"] < 2.2 or row["ratio"] == pytest.approx(
            2, rel=0.05
        )
    assert made.total["ratio"] == pytest.approx(made.total["first_ms"] / made.total["other_ms"])
    assert made.total["low"] < made.total["ratio"] < made.total["high"]
    assert made.total["covered"] == 1.0
    assert made.geometric_mean == pytest.approx(2, rel=0.05)
    assert made.warnings == []


@pytest.mark.slow
def test_the_interval_covers_the_truth_as_often_as_it_says(tmp_path):
    """Two logs of the same speed: the interval holds 1 in about 19 of 20 comparisons."""
    draw = random.Random(0)

    def log(name):
        path = tmp_path / name
        with LogWriter(path) as writer:
            writer.append("header", header())
            for n in range(200):
                seconds = [1e-3 * draw.gauss(1, 0.02) for _ in range(30)]
                writer.append("task", task(f"t{n}") | {"weight": 1, "index": n})
                writer.trial(trial(f"t{n}", "x", *seconds))
        return sections(read_log(path))[0]

    rows = compare(log("a.json"), log("b.json")).rows
    covered = sum(row["low"] <= 1 <= row["high"] for row in rows)
    assert 180 <= covered <= 200


def test_few_repeats_get_no_interval(tmp_path):
    path = tmp_path / "a.json"
    with LogWriter(path) as writer:
        writer.append("header", header())
        writer.append("task", task("a") | {"weight": 1})
        writer.trial(trial("a", "1", 1e-3, 1.1e-3))
    (made,) = sections(read_log(path))
    result = compare(made, made)
    assert result.rows[0]["low"] is None and result.total["low"] is None
    assert result.total["ratio"] == 1.0


def test_tasks_are_matched_by_key_then_by_a_unique_anchor(tmp_path):
    def log(name, *keys):
        path = tmp_path / name
        with LogWriter(path) as writer:
            writer.append("header", header())
            for key, anchor in keys:
                writer.append("task", task(key) | {"weight": 1, "anchor": anchor})
                writer.trial(trial(key, "1", 1e-3))
        return sections(read_log(path))[0]

    first = log("a.json", ("same", "s"), ("old", "x"), ("p", "twice"), ("q", "twice"))
    other = log("b.json", ("same", "s"), ("new", "x"), ("r", "twice"))
    made = compare(first, other)
    assert [(r["label"], r["how"]) for r in made.rows] == [
        ("fused_same", "exact"),
        ("fused_new", "anchor"),
    ]
    assert made.only_first == ["fused_p", "fused_q"] and made.only_other == ["fused_r"]


def test_different_devices_are_named(tmp_path):
    path = tmp_path / "b.json"
    with LogWriter(path) as writer:
        writer.append("header", header(device(threads=1), host={"host": "elsewhere"}))
        writer.append("task", task("a") | {"weight": 1})
        writer.trial(trial("a", "1", 1e-3))
    made = compare(one(tmp_path / "a.json"), sections(read_log(path))[0])
    assert len(made.warnings) == 2
    assert RESAMPLES >= 1000
