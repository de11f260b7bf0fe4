"""Workers: whatever a call does to its process, the session gets a result and continues."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest

import processes
from tvmtune.workers import Outcome, Worker, Workers

CALLS = "measure.calls"


@pytest.fixture(scope="module")
def workers():
    with Workers(2, init=f"{CALLS}:init", options={"colour": "green"}) as pool:
        yield pool


def call(workers: Workers, function: str, *args: object, deadline: float = 30.0) -> Outcome:
    (outcome,) = workers.map(f"{CALLS}:{function}", [args], deadline=deadline, stage="run")
    return outcome


def process_ids(note: Path) -> list[int]:
    """The process IDs of a worker, a compiler driver and its compiler: see ``start_child_and_wait``."""
    return [int(pid) for pid in note.read_text().split()]


def test_results_are_returned_and_reported_in_order(workers):
    reported: list[tuple[int, object]] = []
    outcomes = workers.map(
        f"{CALLS}:sleep",
        [(0.3,), (0.0,), (0.1,)],
        deadline=30,
        stage="run",
        on_result=lambda index, outcome: reported.append((index, outcome.value)),
    )
    assert [o.value for o in outcomes] == [0.3, 0.0, 0.1]
    assert reported == [(0, 0.3), (1, 0.0), (2, 0.1)]
    assert workers.map(f"{CALLS}:double", [], deadline=1, stage="run") == []


def test_workers_are_other_processes_that_are_reused(workers):
    calls = [(n,) for n in range(12)]
    seen = [o.value for o in workers.map(f"{CALLS}:process", calls, deadline=30, stage="run")]
    assert os.getpid() not in seen
    assert len(set(seen)) <= 2


def test_init_runs_in_each_worker(workers):
    assert call(workers, "initial", "colour") == Outcome(value="green")


def test_a_call_past_its_deadline_is_killed(workers, tmp_path):
    note = tmp_path / "pid"
    outcome = call(workers, "start_child_and_wait", str(note), deadline=3.0)
    assert outcome == Outcome(stage="timeout", message="killed after 3 s (run)")
    assert not outcome.ok
    assert processes.ended(process_ids(note))
    assert call(workers, "double", 21).value == 42


@pytest.mark.parametrize(
    ("function", "args", "how"),
    [
        ("abort", (), "SIGABRT: .*the heap is in pieces"),
        ("touch_address_zero", (), "SIGSEGV"),
        ("die_by", ("SIGKILL",), "SIGKILL"),
        ("die_by", ("SIGILL",), "SIGILL"),
        ("leave", (3,), "exit code 3"),
    ],
)
def test_a_crash_names_its_signal_and_the_pool_continues(workers, function, args, how):
    import re

    outcome = call(workers, function, *args)
    assert outcome.stage == "crash"
    assert re.match(f"the worker died: {how}", outcome.message), outcome.message
    assert "\n" not in outcome.message
    assert call(workers, "double", 21).value == 42


def test_a_crash_affects_no_other_call(workers):
    done = workers.map(f"{CALLS}:double", [(n,) for n in range(8)], deadline=30, stage="run")
    assert [o.value for o in done] == [2 * n for n in range(8)]
    mixed = workers.map(
        f"{CALLS}:complain", [("a",), ("b",)], deadline=30, stage="build"
    ) + workers.map(f"{CALLS}:abort", [(), ()], deadline=30, stage="build")
    assert [o.stage for o in mixed] == ["build", "build", "crash", "crash"]


def test_an_exception_becomes_the_message(workers):
    outcome = call(workers, "complain", "no such register: zmm99")
    assert outcome == Outcome(stage="run", message="no such register: zmm99")
    assert call(workers, "complain", "").message == "ValueError"
    long = call(workers, "complain", "\n".join(["stack"] * 50 + ["the check that failed"]))
    assert long.message == "the check that failed"


def test_an_unknown_function_is_an_error_of_the_call(workers):
    outcome = call(workers, "absent")
    assert outcome.stage == "run"
    assert "absent" in outcome.message


def test_a_worker_is_replaced_after_recycle_calls():
    with Workers(1, recycle=2) as pool:
        seen = [o.value for o in pool.map(f"{CALLS}:process", [()] * 6, deadline=30, stage="run")]
    assert len(set(seen)) == 3


def test_a_pool_closes_at_once_after_an_interrupt():
    pool = Workers(1)

    def interrupt(index: int, outcome: Outcome) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), pool:
        calls = [(0.0,), (600.0,), (600.0,)]
        pool.map(f"{CALLS}:sleep", calls, deadline=900, stage="run", on_result=interrupt)
    pool.close()  # closing twice is harmless


# A session in another process whose pool works for ten minutes.
SESSION = f"""
import sys
sys.path[:] = {sys.path!r}
from tvmtune.workers import Workers
with Workers(2) as pool:
    if sys.argv[1:]:
        print("ready", flush=True)
        paths = [(path,) for path in sys.argv[1:]]
        pool.map("{CALLS}:start_child_and_wait", paths, deadline=600, stage="run")
    else:
        pool.map("{CALLS}:chatter", [()] * 4, deadline=60, stage="run")
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_workers_die_with_their_session(tmp_path, how):
    mark = uuid.uuid4().hex
    notes = [tmp_path / "first", tmp_path / "second"]
    session = subprocess.Popen(
        [sys.executable, "-c", SESSION, *map(str, notes)], env=os.environ | {processes.MARK: mark}
    )
    try:
        while not all(n.exists() and n.read_text() for n in notes):
            assert session.poll() is None
        assert {pid for n in notes for pid in process_ids(n)} < set(processes.marked(mark))
        session.send_signal(how)
        session.wait(20)
        assert processes.after_a_while(mark) == {}
    finally:
        session.kill()


def test_workers_leave_the_terminal_clean():
    done = subprocess.run(
        [sys.executable, "-c", SESSION], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_workers_can_use_every_cpu_even_if_the_session_is_bound_to_one():
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mine)})
    try:
        with Workers(1) as workers:
            outcome = workers.map("os:sched_getaffinity", [(0,)], deadline=60, stage="run")[0]
    finally:
        os.sched_setaffinity(0, mine)
    assert outcome.value == mine


@pytest.fixture
def worker():
    started = Worker(init=f"{CALLS}:init", options={"colour": "green"})
    yield started
    started.close()


def test_a_single_worker_runs_one_call_after_another(worker):
    assert worker.call(f"{CALLS}:initial", ("colour",), 60.0) == Outcome(value="green")
    first = worker.call(f"{CALLS}:process", (), 60.0).value
    assert worker.call(f"{CALLS}:process", (), 60.0).value == first != os.getpid()
    outcome = worker.call(f"{CALLS}:complain", ("no such register: zmm99",), 60.0)
    assert outcome == Outcome(stage="run", message="no such register: zmm99")


def test_a_single_worker_that_hangs_or_dies_is_replaced(worker, tmp_path):
    note = tmp_path / "pid"
    hung = worker.call(f"{CALLS}:start_child_and_wait", (str(note),), 3.0)
    assert hung == Outcome(stage="timeout", message="killed after 3 s")
    assert processes.ended(process_ids(note))
    died = worker.call(f"{CALLS}:abort", (), 60.0)
    assert died.stage == "crash"
    assert died.message == "the worker died: SIGABRT: the heap is in pieces"
    assert worker.call(f"{CALLS}:die_by", ("SIGKILL",), 60.0).message == "the worker died: SIGKILL"
    assert worker.call(f"{CALLS}:double", (21,), 60.0).value == 42


def test_orphans_of_a_worker_are_adopted_by_the_fork_server(worker):
    # Not by process 1, which in a container may never reap it.
    daemon, server = worker.call(f"{CALLS}:leave_behind", (), 60.0).value
    try:
        assert worker.call(f"{CALLS}:abort", (), 60.0).stage == "crash"
        assert processes.soon(lambda: int(processes.state(daemon).split()[1]) == server)
    finally:
        os.kill(daemon, signal.SIGKILL)
    assert processes.soon(lambda: processes.state(daemon) == "")


def test_a_single_worker_can_be_closed_during_a_call(worker):
    outcomes: list[Outcome] = []
    arguments = (f"{CALLS}:sleep", (600.0,), 900.0)
    thread = threading.Thread(target=lambda: outcomes.append(worker.call(*arguments)))
    thread.start()
    while worker._process is None:
        time.sleep(0.01)
    pid = worker._process.pid
    time.sleep(0.5)
    worker.close()
    thread.join(10)
    assert [outcome.stage for outcome in outcomes] == ["crash"]
    assert not Path(f"/proc/{pid}").exists()
    assert worker.call(f"{CALLS}:double", (1,), 60.0) == Outcome(
        stage="crash", message="the worker is closed"
    )
