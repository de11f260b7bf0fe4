"""What a report says about a log, number by number."""

from __future__ import annotations

from math import exp, log

import pytest

from records.sample_log import device, header, task, trial
from report import sample
from tvmtune.records import table
from tvmtune.records.best import best_of
from tvmtune.records.log import LogWriter, read_log
from tvmtune.report import charts, facts
from tvmtune.report.summary import BINS, sections
from tvmtune.report.thinning import ranges, thinned


@pytest.fixture
def section(log):
    (made,) = sections(log)
    return made


def test_the_estimate_is_the_weighted_sum_of_the_best(section, log):
    best = {key: t.latency for key, t in best_of(log.trials).items()}
    expected = 1e3 * sum(log.tasks[key]["weight"] * latency for key, latency in best.items())
    assert section.estimate_ms == pytest.approx(expected)
    assert section.curve[-1]["estimate_ms"] == section.estimate_ms
    known = [e for e in table.trials(log)["estimate_ms"] if e is not None]
    assert section.first_estimate_ms == known[0]
    assert {p["estimate_ms"] for p in section.curve} == set(known)


def test_the_curves_start_at_zero_and_below_the_last_tick(section):
    for x in ("trial", "seconds"):
        encoding = charts.estimate(section.curve, x, x)["encoding"]
        assert encoding["x"]["scale"]["zero"] is True
        assert encoding["y"]["scale"]["nice"] == encoding["y"]["axis"]["tickCount"]


def test_time_leaves_out_pauses_between_runs(section):
    assert [r.seconds for r in section.runs] == [30.0, 3.0]
    assert section.seconds == 33.0
    assert section.curve[-1]["seconds"] == 33.0
    assert [r.trials for r in section.runs] == [30, 2]


def test_each_task(section):
    a, _, c = section.tasks
    assert a.row["implementation"] == "direct"
    assert a.row["of_peak"] == pytest.approx(a.row["gflops"] / 200.0)
    assert a.bytes == 64 * 4 + 64 * 64 + 64 * 4
    assert a.best.candidate == "last"
    assert c.row["failed"] == 2
    assert {f["stage"] for f in c.failures} == {"build", "wrong-answer"}
    assert a.implementations[0]["ratio"] == 1.0


def test_the_trial_that_compile_takes_may_not_be_the_fastest(tmp_path):
    path = tmp_path / "log.json"
    with LogWriter(path) as writer:
        writer.append("header", header())
        writer.append("task", task("a"))
        writer.trial(trial("a", "unchecked", 1e-3))
        writer.trial(trial("a", "right", 2e-3, verified=True))
    (made,) = sections(read_log(path))
    assert made.tasks[0].best.candidate == "unchecked"
    assert made.tasks[0].shipped.candidate == "right"


def test_implementations_are_compared_by_their_best(section):
    by_name = {i["name"]: i for i in section.implementations}
    assert set(by_name) == {"direct", "winograd"}
    assert sum(i["won"] for i in by_name.values()) == 3
    assert sum(i["trials"] for i in by_name.values()) == 32
    ratios = [
        i["ratio"] for t in section.tasks for i in t.implementations if i["name"] == "winograd"
    ]
    mean = exp(sum(map(log, ratios)) / len(ratios))
    assert by_name["winograd"]["ratio"] == pytest.approx(mean)


def test_failures_have_their_first_message(section):
    build, wrong = section.failures
    assert (build["stage"], build["count"]) == ("build", 3)
    assert build["message"].endswith("at 9")
    assert (wrong["stage"], wrong["count"], wrong["message"]) == ("wrong-answer", 1, "off by 0.5")
    assert sum(o["trials"] for o in section.outcomes) == 32
    assert sum(o["trials"] for o in section.outcomes if o["outcome"] != "ok") == section.failed == 4


def test_drift(section):
    assert [r["ratio"] for r in section.drift] == [1.0, 1.0, 1.0, 1.3, 1.0, 1.0]
    assert section.drift[3]["seconds"] == 16.0
    assert section.slow == 1


def test_what_the_log_does_not_hold_is_left_out(tmp_path):
    path = tmp_path / "log.json"
    with LogWriter(path) as writer:
        writer.append("header", header())
        writer.trial(trial("a", "1", 1e-3))
        writer.trial(trial("a", "2", 2e-3))
    (made,) = sections(read_log(path))
    assert made.estimate_ms is None and made.curve == []
    assert made.seconds is None and made.peak is None and made.drift == []
    assert made.tasks[0].row["gflops"] is None and made.tasks[0].bytes is None
    titles = [title for title, _ in facts.of_section(made)]
    assert titles == ["Network", "Device"]


def test_a_distilled_log_has_no_course_of_tuning(tmp_path):
    (made,) = sections(read_log(sample.distilled(tmp_path / "best.json")))
    assert made.distilled and made.curve == [] and made.outcomes == []
    assert made.estimate_ms == 2.0 and made.first_estimate_ms is None


def test_devices_and_kinds_are_kept_apart(tmp_path):
    path = tmp_path / "log.json"
    with LogWriter(path) as writer:
        writer.append("header", header())
        writer.append("task", task("a") | {"weight": 1})
        writer.trial(trial("a", "1", 1e-3))
        writer.trial(trial("a", "1", 5e-3, kind="modelled"))
        writer.append("header", header(device(threads=1)))
        writer.trial(trial("a", "1", 3e-3))
    found = {(s.device["threads"], s.kind): s.estimate_ms for s in sections(read_log(path))}
    assert found == {(2, "measured"): 1.0, (2, "modelled"): 5.0, (1, "measured"): 3.0}


def test_a_log_without_trials(tmp_path):
    path = tmp_path / "log.json"
    with LogWriter(path) as writer:
        writer.append("header", header())
    (made,) = sections(read_log(path))
    assert made.tasks == [] and made.estimate_ms is None


def test_a_torn_line_and_failed_tasks_are_noted(path):
    with LogWriter(path) as writer:
        writer.append("task", task("d") | {"index": 3, "weight": 1})
        writer.trial(trial("d", "1"))
    path.write_bytes(path.read_bytes() + b'{"type":"trial","ta')
    (made,) = sections(read_log(path))
    assert any("incomplete" in note for note in made.notes)
    assert any("fused_d" in note for note in made.notes)
    assert made.estimate_ms is not None


def test_many_trials_become_few_points(tmp_path):
    path = tmp_path / "log.json"
    with LogWriter(path) as writer:
        writer.append("header", header())
        writer.append("task", task("a") | {"weight": 1})
    lines = path.read_text().splitlines()
    with LogWriter(path) as writer:
        writer.trial(trial("a", "x", 1.0))
    model = path.read_text().splitlines()[-1]
    design = path.read_text().splitlines()[len(lines) : -1]
    many = [
        model.replace('"x"', f'"{n}"').replace("[1.0]", f"[{2 - n / 3000}]") for n in range(3000)
    ]
    path.write_text("\n".join([*lines, *design, *many]) + "\n")
    (made,) = sections(read_log(path))
    assert len(made.trials) == 3000
    assert len(made.curve) <= 600 and made.curve[-1]["trial"] == 3000
    points = [p for p in made.tasks[0].points if "low" in p]
    assert len(points) == 2 * BINS and sum(p["count"] for p in points) == 3000
    assert points[-1]["low"] == pytest.approx(1e3 * (2 - 2999 / 3000))


def test_thinning_keeps_the_ends():
    assert thinned(range(10), 20) == list(range(10))
    assert thinned(range(100), 4) == [0, 33, 66, 99]
    parts = ranges(10, 3)
    assert [n for part in parts for n in part] == list(range(10))
    assert ranges(0, 3) == []
