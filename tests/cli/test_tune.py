"""``tvmtune tune`` from end to end, and the log after an interrupt."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest

import processes
from cli.commands import TRIAL, command, complaint, tvmtune
from models import tiny_cnn
from tvmtune.machine.linkers import find_linker
from tvmtune.records.log import read_log
from tvmtune.tuning import failures

QUICK = ("--network", "tiny.onnx", "--repeat", 2)
TASKS = 9


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(tiny_cnn(), tmp_path / "tiny.onnx")
    return tmp_path


class Running:
    """A ``tvmtune`` process in its own session, its stderr in a file."""

    def __init__(self, folder: Path, *args: object) -> None:
        self.mark = uuid.uuid4().hex
        self.stderr = folder / f"stderr-{self.mark}"
        with self.stderr.open("w") as stream:
            self.process = subprocess.Popen(
                command(*args),
                cwd=folder,
                env=os.environ | {processes.MARK: self.mark},
                stdout=subprocess.DEVNULL,
                stderr=stream,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self.stderr.read_text()

    def wait_for_trials(self, count: int) -> None:
        while len(TRIAL.findall(self.output)) < count:
            assert self.process.poll() is None, self.output
            time.sleep(0.02)

    def left(self) -> dict[int, str]:
        return processes.after_a_while(self.mark)


@pytest.fixture
def running(folder: Path) -> Iterator[list[Running]]:
    """Processes to end after the test."""
    started: list[Running] = []
    yield started
    for each in started:
        for pid in processes.marked(each.mark):
            os.kill(pid, signal.SIGKILL)
        each.process.wait()


@pytest.mark.slow
def test_a_file_is_tuned_resumed_distilled_and_compiled(folder, command_line, monkeypatch):
    first = tvmtune(
        "-v", "tune", *QUICK, "--trials", 12, "--log", "log.json", "-o", "lib.so", cwd=folder
    )
    assert first.returncode == 0, first.stderr
    shown = TRIAL.findall(first.stderr)
    assert [t.candidate for t in read_log(folder / "log.json").trials] == shown
    assert len(shown) == 12
    assert (folder / "lib.so").stat().st_size > 0
    assert "the output is" in first.stdout
    # so small a network may be faster untuned, which the output states
    records = 0 if "the untuned one is written" in first.stderr else TASKS
    assert f"{TASKS} tasks: {records} with a record" in first.stdout

    second = tvmtune(
        "-v", "tune", *QUICK, "--trials", 15, "--log", "log.json", "--no-compile", cwd=folder
    )
    assert second.returncode == 0, second.stderr
    assert "resuming: 12 trials" in second.stderr
    candidates = [(t.workload, t.candidate) for t in read_log(folder / "log.json").trials]
    assert len(candidates) == len(set(candidates)) == 15

    third = tvmtune(
        "-v", "tune", *QUICK, "--trials", 15, "--log", "log.json", "--no-compile", cwd=folder
    )
    assert third.returncode == 0, third.stderr
    assert TRIAL.findall(third.stderr) == []

    monkeypatch.chdir(folder)
    code, _, stderr = command_line("distill", "log.json")
    assert code == 0, stderr
    best = read_log(folder / "log.best.json")
    assert len(best.trials) == TASKS
    code, stdout, stderr = command_line(
        "compile", "--network", "tiny.onnx", "--log", "log.best.json", "-o", "again.so"
    )
    assert code == 0, stderr
    assert f"{TASKS} tasks: {TASKS} with a record" in stdout
    assert sorted(p.name for p in folder.iterdir()) == [
        "again.so", "lib.so", "log.best.json", "log.json", "tiny.onnx"
    ]  # fmt: skip


@pytest.mark.slow
def test_no_compile_leaves_only_the_log_under_its_default_name(folder):
    done = tvmtune("tune", *QUICK, "--trials", TASKS, "--no-compile", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert sorted(p.name for p in folder.iterdir()) == ["tiny-NHWC-B1-cpu.json", "tiny.onnx"]


@pytest.mark.slow
def test_fresh_renames_the_old_log(folder):
    old = folder / "log.json"
    old.write_text("what was here before\n")
    (folder / "log.json.1").write_text("and before that\n")
    args = (*QUICK, "--tasks", "0", "--trials", 2, "--no-compile", "--log", "log.json", "--fresh")
    done = tvmtune("tune", *args, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "is now log.json.2" in done.stderr
    assert (folder / "log.json.2").read_text() == "what was here before\n"
    assert (folder / "log.json.1").read_text() == "and before that\n"
    assert len({t.task for t in read_log(old).trials}) == 1


@pytest.mark.slow
def test_no_displayed_trial_is_lost_after_a_kill(folder, running):
    moments = random.Random(20)
    log = folder / "log.json"
    for number in range(3):  # the soak has a hundred
        run = Running(folder, "-v", "tune", *QUICK, "--trials", 10**6, "--log", log, "--no-compile")
        running.append(run)
        before = len(read_log(log).trials) if log.exists() and log.stat().st_size else 0
        # mostly during measurements, sometimes during startup
        if number == 2:
            time.sleep(moments.uniform(0.5, 5.0))
        else:
            run.wait_for_trials(moments.randint(1, 12))
            time.sleep(moments.uniform(0.0, 1.0))
        assert run.process.poll() is None, run.output
        run.process.send_signal(signal.SIGKILL)
        run.process.wait()
        assert run.left() == {}
        shown = TRIAL.findall(run.output)
        if shown and before:
            assert f"resuming: {before} trial" in run.output
        if log.exists() and log.stat().st_size:
            logged = read_log(log).trials
            new = [t.candidate for t in logged[before:]]
            # at most the last trial was written but not yet shown
            assert new[: len(shown)] == shown
            assert len(new) <= len(shown) + 1
    candidates = [(t.workload, t.candidate) for t in read_log(log).trials]
    assert len(candidates) > TASKS
    assert len(candidates) == len(set(candidates))


@pytest.mark.slow
def test_an_interrupt_exits_with_130_and_leaves_the_log_intact(folder, running):
    run = Running(folder, "-v", "tune", *QUICK, "--trials", 10**6, "--log", "log.json")
    running.append(run)
    run.wait_for_trials(14)
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.process.wait(60) == 130
    assert run.left() == {}
    assert complaint(run.output) == "interrupted"
    assert "every trial is in log.json" in run.output
    shown = TRIAL.findall(run.output)
    logged = [t.candidate for t in read_log(folder / "log.json").trials]
    # at most the last trial was written but not yet shown
    assert logged[: len(shown)] == shown
    assert len(logged) <= len(shown) + 1
    assert not (folder / "tiny.so").exists()


@pytest.mark.slow
def test_a_second_run_on_the_same_log_is_rejected(folder, running):
    first = Running(folder, "-v", "tune", *QUICK, "--trials", 10**6, "--log", "log.json")
    running.append(first)
    first.wait_for_trials(3)
    second = tvmtune("tune", *QUICK, "--trials", 50, "--log", "log.json", cwd=folder)
    assert second.returncode == 1
    assert complaint(second.stderr).startswith("another process is writing to log.json")
    assert first.process.poll() is None
    so_far = len(TRIAL.findall(first.output))
    first.wait_for_trials(so_far + 1)


@pytest.mark.slow
def test_a_dry_run_prints_the_plan_and_writes_nothing(folder):
    done = tvmtune("tune", "--network", "tiny.onnx", "--trials", 77, "--dry-run", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert f"{TASKS} of {TASKS} tasks" in done.stdout
    assert "until 77 trials" in done.stdout
    assert "log: tiny-NHWC-B1-cpu.json; library: tiny.so" in done.stdout
    assert done.stderr == ""
    assert [p.name for p in folder.iterdir()] == ["tiny.onnx"]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("only", "count"),
    [
        ("3", 1),
        ("0-2,8", 4),
        ("*conv2d*", 4),
        ("top2", 2),
        ("top2,0-8", 9),
        ("99", 0),
        ("dense", 0),
    ],
)
def test_tasks_are_selected_by_index_name_and_share(folder, only, count, monkeypatch, capsys):
    from tvmtune.cli import main

    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as ended:
        main(["tune", "--network", "tiny.onnx", "--tasks", only, "--dry-run"])
    captured = capsys.readouterr()
    if count:
        assert ended.value.code == 0
        assert f"{count} of {TASKS} tasks" in captured.out
    else:
        assert ended.value.code == 2
        assert f"--tasks {only} matches none" in complaint(captured.err)


@pytest.fixture
def invoke(folder, monkeypatch, capsys) -> Callable[..., tuple[int, str]]:
    """Runs ``tune`` in this process; exit status and stderr, or the plan of a dry run."""
    from tvmtune.cli import main

    monkeypatch.chdir(folder)

    def run(*args: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["tune", "--network", "tiny.onnx", *args])
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out or captured.err

    return run


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("args", "limits"),
    [
        ((), "until 30:00 or 64 trials without 1% gain"),
        (("--patience", "9"), "until 30:00 or 9 trials without 1% gain"),
        (("--task-patience", "9"), "until 30:00 or 9 trials of each task without 1% gain"),
        (("--time-budget", "90s"), "until 1:30"),
        (("--trials", "50", "--patience", "9"), "until 50 trials or 9 trials without 1% gain"),
        (("--trials-per-task", "7"), "until 7 trials a task"),
    ],
)
def test_the_plan_states_when_tuning_ends(invoke, args, limits):
    code, text = invoke(*args, "--dry-run")
    assert code == 0
    assert f"{limits}\n" in text


def test_the_plan_states_the_size_of_a_finite_space(invoke, monkeypatch):
    from tvmtune.spaces.rule_space import RuleSpace

    monkeypatch.setattr(RuleSpace, "size", 5)
    whole = "until all 5 points of the space"
    assert f"{whole}\n" in invoke("--tasks", "0", "--trials", "6", "--dry-run")[1]
    assert f"{whole} or 1:30\n" in invoke("--tasks", "0", "--time-budget", "90", "--dry-run")[1]
    assert "until 4 trials\n" in invoke("--tasks", "0", "--trials", "4", "--dry-run")[1]


def test_a_grid_of_unknown_size_is_rejected_before_anything_is_built(invoke, folder):
    code, text = invoke("--tuner", "grid")
    assert code == 2
    assert "has no known size: limit the trials or the time" in complaint(text)
    assert [p.name for p in folder.iterdir()] == ["tiny.onnx"]
    assert invoke("--tuner", "grid", "--trials-per-task", "3", "--dry-run")[0] == 0


def test_a_transfer_log_is_checked_before_anything_is_built(invoke, folder):
    code, text = invoke("--transfer-from", "absent.json")
    assert code == 1
    assert complaint(text) == "--transfer-from: there is no log at absent.json"
    (folder / "log.json").write_text(
        '{"type": "header", "format": 99, "device": {}, "network": {}}'
    )
    code, text = invoke("--transfer-from", "log.json")
    assert code == 1
    assert complaint(text).startswith("--transfer-from: log.json was written by a newer tvmtune")
    code, text = invoke("--transfer-from", "log.json", "--log", "log.json")
    assert code == 2
    assert complaint(text).startswith("--transfer-from: log.json is the log of this run")


@pytest.mark.slow
def test_a_run_in_which_everything_fails_is_aborted_with_the_log_intact(
    invoke, folder, monkeypatch
):
    # The linker exceeds the build timeout; a killed build leaves no process behind.
    monkeypatch.setattr(failures, "MIN_TRIALS", 6)
    mark = uuid.uuid4().hex
    linker = folder / "linker"
    linker.write_text(
        f"#!/bin/sh\necho >> {folder}/started\n"
        f'{processes.MARK}={mark} sleep 10\nexec {find_linker()[0]} "$@"\n'
    )
    linker.chmod(0o755)
    monkeypatch.setenv("TVMTUNE_LINKER", str(linker))
    limits = ("--build-timeout", "1.5", "--trials", "100000", "--no-compile", "--log", "log.json")
    code, text = invoke(*limits)
    assert len((folder / "started").read_text()) > 3
    assert processes.after_a_while(mark, at_most=1) == {}
    assert code == 1
    assert re.match(
        r"tuning was given up: (\d+) of the last \1 trials failed, the first of each kind: "
        r"\1 at timeout: killed after 1.5 s \(build\)",
        complaint(text),
    )
    assert "stopped because too many trials failed" in " ".join(text.split())
    assert "every trial is in log.json" in text
    trials = read_log(folder / "log.json").trials
    assert trials
    assert {t.error["stage"] for t in trials if t.error} == {"timeout"}
