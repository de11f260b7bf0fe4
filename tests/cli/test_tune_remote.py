"""``tvmtune tune --remote``: boards and trackers come and go without loss of trials."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest

import processes
from cli.commands import complaint, tvmtune
from cli.test_tune import Running
from models import tiny_cnn
from remote.served import Farm, free_port
from tvmtune.records.log import Log, read_log
from tvmtune.remote.protocol import Address

pytestmark = pytest.mark.slow

KEY = "x86"
LOG = f"tiny-NHWC-B1-cpu-{KEY}.json"
TASKS = 9


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(tiny_cnn(), tmp_path / "tiny.onnx")
    return tmp_path


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    started = Farm(tmp_path / "farm")
    started.folder.mkdir()
    try:
        yield started
    finally:
        for running in started._running:
            if running.process.poll() is None:
                running.end()
            assert processes.after_a_while(running.mark) == {}


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., Running]]:
    """Starts ``tvmtune`` processes that end with the test."""
    started: list[Running] = []

    def begin(*args: object) -> Running:
        started.append(Running(folder, *args))
        return started[-1]

    yield begin
    for each in started:
        for pid in processes.marked(each.mark):
            os.kill(pid, signal.SIGKILL)
        each.process.wait()


def words(tracker: Address, trials: int, *more: object) -> list[object]:
    where = ["--network", "tiny.onnx", "--target", "cpu", "--remote", KEY, "--tracker", tracker]
    return ["tune", *where, "--repeat", 2, "--trials", trials, "--no-compile", *more]


def trials(folder: Path) -> Log:
    """The log, in which no candidate was measured twice, and each on a board.

    LLVM compiles a few of this network's schedules wrongly. They are measured, too, before they are
    found to be wrong.
    """
    log = read_log(folder / LOG)
    seen = [(t.workload, t.candidate) for t in log.trials]
    assert len(seen) == len(set(seen))
    assert all(t.seconds for t in log.trials)
    assert {t.error["stage"] for t in log.trials if t.error} <= {"wrong-answer"}
    return log


def wait_for_trials(folder: Path, count: int, within: float = 90.0) -> None:
    end = time.monotonic() + within
    log = folder / LOG
    while not log.exists() or log.read_text().count('"type":"trial"') < count:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_network_is_tuned_on_boards(folder, farm):
    _, tracker = farm.tracker()
    _, board = farm.board(KEY, tracker)
    mark = {processes.MARK: f"{folder}-tune"}
    named = {"TVM_TRACKER_HOST": tracker.host, "TVM_TRACKER_PORT": str(tracker.port)}
    command = [word for word in words(tracker, 14) if word not in ("--tracker", tracker)]
    done = tvmtune(*command, cwd=folder, env=named | mark)
    assert done.returncode == 0, done.stderr
    assert f"boards '{KEY}': {board} joined; now 1" in done.stderr
    assert processes.after_a_while(mark[processes.MARK]) == {}
    log = trials(folder)
    assert len(log.trials) == 14
    assert {trial.task for trial in log.trials} == set(log.tasks)
    assert log.headers[-1]["device"]["remote"] == KEY
    best = {}
    for trial in log.trials:
        best[trial.task] = min(best.get(trial.task, trial), trial, key=lambda t: t.latency)
    assert all(trial.verified for trial in best.values())


def test_a_farm_with_a_secret_tunes_benches_and_runs(folder, farm):
    secret = folder / "farm.secret"
    secret.write_text("correct horse battery")
    secret.chmod(0o600)
    use = ("--secret-file", secret)
    _, tracker = farm.tracker(None, *use)
    farm.board(KEY, tracker, *use)
    tune = [word for word in words(tracker, 6) if word != "--no-compile"]
    refused = tvmtune(*tune, "-o", "lib.so", cwd=folder)
    assert refused.returncode == 1
    assert "serves only clients that know its secret: give it with --secret-file FILE" in complaint(
        refused.stderr
    )
    where = ("--remote", f"{KEY}@{tracker}", *use)
    for command in (
        [*tune, *use, "-o", "lib.so"],
        ["bench", "lib.so", "--check", "--repeat", "2", *where],
        ["run", "lib.so", *where],
    ):
        done = tvmtune(*command, cwd=folder)
        assert done.returncode == 0, done.stderr
    by_text = {"TVMTUNE_SECRET": "another one, just as long"}
    refused = tvmtune("run", "lib.so", "--remote", f"{KEY}@{tracker}", cwd=folder, env=by_text)
    assert refused.returncode == 1
    assert f"the tracker at {tracker} has another secret" in complaint(refused.stderr)


def test_no_trial_is_lost_if_boards_are_killed(folder, farm, start):
    _, tracker = farm.tracker()
    first, address = farm.board(KEY, tracker)
    second, _ = farm.board(KEY, tracker)
    running = start(*words(tracker, 20, "-v"))
    wait_for_trials(folder, 3)
    first.kill()
    wait_for_trials(folder, 8)
    farm.board(KEY, tracker, port=address.port)
    wait_for_trials(folder, 14)
    second.kill()
    assert running.process.wait(120) == 0, running.stderr.read_text()
    assert processes.after_a_while(running.mark) == {}
    log = trials(folder)
    assert len(log.trials) == 20
    assert " left; now" in running.stderr.read_text()


def test_no_trial_is_lost_if_the_tracker_is_killed(folder, farm, start):
    process, tracker = farm.tracker()
    farm.board(KEY, tracker)
    running = start(*words(tracker, 24))
    wait_for_trials(folder, 3)
    process.kill()
    time.sleep(3.0)
    farm.tracker(tracker.port)
    assert running.process.wait(120) == 0, running.stderr.read_text()
    assert processes.after_a_while(running.mark) == {}
    assert len(trials(folder).trials) == 24


def test_without_boards_the_run_ends_with_its_log_intact_and_can_be_resumed(folder, farm, start):
    _, tracker = farm.tracker()
    board, address = farm.board(KEY, tracker)
    running = start(*words(tracker, 22, "--wait", "4s"))
    wait_for_trials(folder, 12)
    board.kill()
    assert running.process.wait(90) == 1
    assert processes.after_a_while(running.mark) == {}
    stderr = running.stderr.read_text()
    assert f"waiting for a board '{KEY}', up to 4 s" in stderr
    assert f"every trial is in {LOG}" in stderr
    assert complaint(stderr).startswith(
        f"no board '{KEY}' was available for 4 s: none is registered"
    )
    measured = len(trials(folder).trials)
    assert 12 <= measured < 22
    farm.board(KEY, tracker, port=address.port)
    again = tvmtune(*words(tracker, 22), cwd=folder)
    assert again.returncode == 0, again.stderr
    assert f"resuming: {measured} trials" in again.stderr
    assert len(trials(folder).trials) == 22


def test_ctrl_c_ends_the_run_and_its_processes(folder, farm, start):
    _, tracker = farm.tracker()
    farm.board(KEY, tracker)
    running = start(*words(tracker, 400))
    wait_for_trials(folder, 5)
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(30) == 130
    assert processes.after_a_while(running.mark) == {}
    assert len(trials(folder).trials) >= 5


def test_an_unknown_key_lists_the_known_ones(folder, farm):
    _, tracker = farm.tracker()
    farm.board("rk3399", tracker)
    done = tvmtune(*words(tracker, 8), cwd=folder, timeout=60)
    assert done.returncode == 1
    assert f"has no board '{KEY}': it has rk3399" in complaint(done.stderr)
    assert not (folder / LOG).exists()


def test_a_missing_tracker_and_another_server_are_distinguished(
    folder, command_line, monkeypatch, within
):
    within(60)
    monkeypatch.chdir(folder)
    code, _, stderr = command_line(*map(str, words(Address("127.0.0.1", free_port()), 8)))
    assert code == 1
    assert "no tracker answers at" in complaint(stderr)
    assert "tvmtune tracker" in complaint(stderr)
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        address = Address("127.0.0.1", stranger.getsockname()[1])
        code, _, stderr = command_line(*map(str, words(address, 8)))
    assert code == 1
    assert f"what answers at {address} is not a tracker" in complaint(stderr)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--remote", "a:b"], "'a:b' cannot be the key of a board"),
        (["--remote", ""], "'' cannot be the key of a board"),
        (["--remote", "a", "--tracker", "here:x"], "--tracker: 'here:x' is not an address"),
        (["--remote", "a@b:1", "--tracker", "c:2"], "both name a tracker"),
        (["--tracker", "c:2"], "--tracker without --remote"),
        (["--remote", "a", "--wait", "soon"], "--wait takes seconds"),
    ],
)
def test_contradictory_or_invalid_boards_are_rejected(folder, given, message):
    done = tvmtune("tune", "--network", "tiny.onnx", *given, cwd=folder, timeout=60)
    assert done.returncode == 2
    assert message in complaint(done.stderr)
