"""``tvmtune simulate``: from a log to a comparison of tuners, and errors for other logs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cli.commands import complaint, tvmtune
from tuning.surveyed import KERNEL, survey
from tvmtune.cli import main

SMALL = ("--arg", "n=8")


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    return survey(tmp_path_factory.mktemp("survey"))


@pytest.fixture
def invoke(capsys):
    """Runs the command; exit status, standard output, standard error."""

    def run(*args: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["simulate", *map(str, args)])
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return run


@pytest.mark.slow
def test_a_space_measured_by_grid_is_simulated_from_its_log(tmp_path):
    (tmp_path / "product.py").write_text(KERNEL)
    measure = Path(__file__).parents[2] / "benchmarks/spaces/measure.py"
    done = subprocess.run(
        [sys.executable, measure, "product.py", *SMALL, "--repeat", "2", "-o", "full.json.gz"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "80 points" in done.stdout
    reports = []
    for name in ("a.json", "b.json"):
        done = tvmtune(
            "simulate", "full.json.gz", "--tuner", "random", "--tuner", "droplet", "--seeds", 3,
            "--json", name, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert re.search(r"^│ random +│ +[\d.]+ \([\d.]+-[\d.]+\) │ +3/3 │", done.stdout, re.M)
        reports.append((tmp_path / name).read_text())
    assert reports[0] == reports[1]
    (space,) = json.loads(reports[0])["spaces"]
    assert space["size"] == 4 * 4 * 5
    for runs in (space["tuners"][name]["runs"] for name in ("random", "droplet")):
        assert [run["missed"] for run in runs] == [0, 0, 0]
        assert all(run["best_ms"] <= space["best_ms"] / 0.99 for run in runs)


@pytest.mark.slow
def test_the_table_compares_the_tuners(invoke, log):
    code, out, err = invoke(log, "--tuner", "ga", "--tuner", "random", "--seeds", 3)
    assert code == 0
    assert "180 points, best 1 ms, 0.56% within 95% of it" in out
    rows = re.findall(r"^│ (\S+) +│ +([\d.]+) \(([\d.]+)-([\d.]+)\) │ +(\d)/3 │", out, re.M)
    assert [row[0] for row in rows] == ["ga", "random"]
    for _, mean, low, high, reached in rows:
        assert 1 <= float(low) <= float(mean) <= float(high) <= 180
        assert reached == "3"
    runs = re.findall(r"^task 0 product1 \(template\): (\w+), seed (\d): 90% after", err, re.M)
    assert runs == [(name, str(seed)) for name in ("ga", "random") for seed in range(3)]


def test_the_seeds_determine_the_result(invoke, log, tmp_path):
    def trials(*args: object) -> list[int]:
        code, out, _ = invoke(log, "--tuner", "ga", "--json", "-", *args)
        assert code == 0
        (space,) = json.loads(out)["spaces"]
        return [run["trials_to"]["99%"] for run in space["tuners"]["ga"]["runs"]]

    first = trials("--seeds", 4)
    assert first == trials("--seeds", 4)
    assert first[1:3] == trials("--seeds", 2, "--seed", 1)
    assert len(set(first)) > 1


def test_the_report_contains_what_the_table_shows(invoke, log):
    code, out, _ = invoke(log, "--tuner", "ga", "--tuner-option", "mutate=0.9", "--seeds", 2,
                       "--trials", 40, "--json", "-")  # fmt: skip
    assert code == 0
    report = json.loads(out)
    assert report["tuners"] == {"ga": {"mutate": 0.9}}
    (space,) = report["spaces"]
    assert (space["name"], space["implementation"]) == ("product1", "template")
    assert (space["size"], space["best_ms"], space["within"]["95%"]) == (180, 1.0, 1)
    assert space["tuners"]["ga"]["trials_to"] == report["all"]["ga"]
    for run in space["tuners"]["ga"]["runs"]:
        assert run["trials"] <= 40


def test_tasks_are_selected_as_in_other_commands(invoke, log):
    args = (log, "--tuner", "random", "--seeds", 1, "--trials", 5, "--tasks")
    assert invoke(*args, "product*")[0] == 0
    code, _, err = invoke(*args, "*conv*")
    assert code == 2
    assert "--tasks *conv* matches none" in complaint(err)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--tuner", "xbg"), "tuner 'xbg' is not known. Did you mean xgb"),
        (("--tuner-option", "populatoin=9"), "xgb has no such option. Did you mean population"),
        (("--tuner-option", "population"), "--tuner-option takes K=V"),
        (("--tuner-option", "population=-1"), "population=-1: expected an integer of at least 1"),
        (("--seeds", "0"), "--seeds must be at least 1"),
        (("--seed", "-1"), "--seed must be at least 0"),
        (("--trials", "0"), "--trials must be at least 1"),
        (("--json", "nowhere/out.json"), "there is no directory nowhere"),
    ],
)
def test_an_invalid_request_lists_the_alternatives(invoke, log, args, message):
    code, out, err = invoke(log, *args)
    assert code == 2
    assert message in complaint(err)
    assert out == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no log at log.json"),
        ("", "log.json is empty"),
        ("no log\n", "log.json is not a tvmtune log: its first line is not a JSON record"),
        ('{"type": "trial"}\n', "it does not begin with a header"),
    ],
)
def test_other_files_are_rejected(invoke, tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("log.json").write_text(content)
    code, out, err = invoke("log.json")
    assert code == 1
    assert message in complaint(err)
    assert out == ""


def test_a_log_without_its_whole_space_is_rejected_with_the_remedy(invoke, tmp_path):
    code, out, err = invoke(survey(tmp_path, part=0.5))
    assert code == 1
    message = complaint(err)
    assert re.search(r"no space that was measured in full .*\(template\): its 90 trials", message)
    assert message.endswith("Complete it with tvmtune tune --tuner grid.")
    assert out == ""


def test_the_report_does_not_overwrite_the_log(invoke, log):
    before = log.read_bytes()
    code, _, err = invoke(log, "--json", log)
    assert code == 2
    assert "is a file that this command needs" in complaint(err)
    assert log.read_bytes() == before
