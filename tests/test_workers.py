"""Workers: whatever a call does to its process, the session gets a result and continues."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest

import control_groups
import disks
import processes
from tvmtune.machine import faults
from tvmtune.workers import Outcome, Worker, Workers, forkserver
from tvmtune.workers import channel as channel_module
from tvmtune.workers import pool as pool_module
from tvmtune.workers import worker as worker_module

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


@pytest.mark.slow
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


@pytest.mark.parametrize("handles", [True, False])
def test_a_pool_closes_within_one_deadline_while_the_forkserver_is_stopped(monkeypatch, handles):
    """However many workers it has; without ``handles``, where the system has none of processes."""
    if not handles:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    for module in (worker_module, pool_module):
        monkeypatch.setattr(module, "END_TIMEOUT", 4.0)
    pool = Workers(5)
    try:
        calls = [pool.submit(f"{CALLS}:sleep", (600.0,), 900.0) for _ in range(5)]
        assert processes.soon(lambda: all(worker.calls for worker in pool._workers))
        left = pids(pool)
        server = forkserver.launch().process.pid
        os.kill(server, signal.SIGSTOP)
        try:
            began = time.monotonic()
            pool.close()
            assert time.monotonic() - began < 20.0  # one after another they would take 40
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server, signal.SIGCONT)
    finally:
        pool.close()
    assert processes.ended(left)
    assert [each.result(60).stage for each in calls] == ["crash"] * 5


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


@pytest.mark.slow
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


def pids(workers: Workers) -> list[int]:
    return [each._child.pid for each in workers._workers if each._child is not None]


@pytest.mark.parametrize("slots", [1, 2])
def test_the_death_of_an_idle_worker_costs_nothing(slots):
    with Workers(slots) as workers:
        for _ in range(3):
            assert call(workers, "double", 21).value == 42
            for pid in pids(workers):
                os.kill(pid, signal.SIGKILL)
            assert processes.ended(pids(workers))
        # Nor does a death between two calls that are queued already.
        outcomes = workers.map(
            f"{CALLS}:double", [(n,) for n in range(8)], deadline=60, stage="run"
        )
        assert [o.value for o in outcomes] == [2 * n for n in range(8)]


def test_queued_calls_outlive_the_workers_that_die(tmp_path):
    notes = [tmp_path / str(n) for n in range(6)]
    with Workers(2) as workers:
        handles = [
            workers.submit(f"{CALLS}:start_and_sleep", (str(note), 0.5), 60.0) for note in notes
        ]
        assert processes.soon(lambda: notes[0].exists() and notes[0].read_text() != "")
        os.kill(int(notes[0].read_text()), signal.SIGKILL)
        first, *others = workers.collect(handles, deadline=60, stage="run")
    assert (first.stage, first.fault) == ("crash", "killed")
    assert all(outcome.ok for outcome in others)


def test_a_worker_that_stops_while_idle_is_replaced(monkeypatch):
    monkeypatch.setattr(worker_module, "TAKE_TIMEOUT", 1.0)
    with Workers(1) as workers:
        stopped = call(workers, "process").value
        os.kill(stopped, signal.SIGSTOP)
        # Longer than what the system buffers: sending must not wait for the worker either.
        assert call(workers, "size_of", bytes(1 << 24)).value == 1 << 24
        assert call(workers, "process").value != stopped
    assert processes.ended([stopped])


@pytest.mark.slow
def test_a_worker_that_stops_during_a_call_is_killed_at_the_deadline(tmp_path):
    note = tmp_path / "pid"
    with Workers(1) as workers:
        handle = workers.submit(f"{CALLS}:start_and_sleep", (str(note), 0.5), 3.0)
        assert processes.soon(lambda: note.exists() and note.read_text() != "")
        os.kill(int(note.read_text()), signal.SIGSTOP)
        (outcome,) = workers.collect([handle], deadline=3.0, stage="run")
        assert outcome == Outcome(stage="timeout", message="killed after 3 s (run)")
        assert call(workers, "double", 21).value == 42


def test_no_time_passes_while_the_session_is_stopped(monkeypatch):
    """As if everything was stopped for an hour in the middle of a call, and the session was the first
    to go on."""
    stopped = 0.0
    real = time.monotonic
    monkeypatch.setattr(channel_module.time, "monotonic", lambda: real() + stopped)
    mine, theirs = socket.socketpair()
    with theirs:
        channel = channel_module.Channel(mine)
        real_poll = channel._poll

        class Stopping:
            register = real_poll.register

            def poll(self, milliseconds):
                nonlocal stopped
                if not stopped:
                    stopped = 3600.0
                    return []
                if milliseconds:  # the other side needs some time, too
                    channel_module.send(theirs, b"done")
                return real_poll.poll(milliseconds)

        channel._poll = Stopping()
        assert channel.receive(time.monotonic() + 2.0) == b"done"
        with pytest.raises(TimeoutError):
            channel_module.Channel(mine).receive(time.monotonic() + 0.2)
        channel.close()


def test_temporary_files_of_a_worker_are_in_its_directory(tmp_path):
    with Workers(1, directory=tmp_path) as workers:
        assert call(workers, "temporary_places").value == [str(tmp_path)] * 3


def test_workers_have_the_environment_and_directory_of_their_start(tmp_path, monkeypatch):
    """Not those of the first worker, whose forkserver they share."""
    forkserver.launch()
    monkeypatch.setenv("TVMTUNE_TEST_LATE", "here")
    monkeypatch.setenv("LANGUAGE", "de")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.delenv("HOME")
    monkeypatch.chdir(tmp_path)
    names = ("TVMTUNE_TEST_LATE", "HOME", "LC_ALL")
    with Workers(1, recycle=1) as workers:
        folder, own, child = call(workers, "surroundings", *names).value
        assert folder == str(tmp_path)
        assert own == ["here", None, "C"]  # in English, as faults are recognized
        assert child == ["here", "", "C"]
        monkeypatch.setenv("TVMTUNE_TEST_LATE", "there")
        monkeypatch.chdir("/")
        folder, own, _ = call(workers, "surroundings", *names).value
        assert (folder, own[0]) == ("/", "there")


def test_workers_start_in_a_session_whose_directory_is_gone(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with Workers(1) as workers:
        assert call(workers, "double", 21).value == 42


def test_a_deadline_may_be_very_long():
    with Workers(1) as workers:
        assert call(workers, "sleep", 0.1, deadline=1e12).value == 0.1


@pytest.mark.slow
def test_a_call_waits_in_the_queue_without_spending_its_deadline():
    with Workers(1) as workers:
        outcomes = workers.map(f"{CALLS}:sleep", [(2.0,)] * 3, deadline=5, stage="run")
    assert [o.value for o in outcomes] == [2.0] * 3


def test_an_urgent_call_is_taken_before_those_that_wait():
    ended: list[str] = []
    with Workers(1) as workers:
        handles = []
        for name, urgent in (("first", False), ("second", False), ("third", True)):
            handle = workers.submit(f"{CALLS}:sleep", (0.3,), 30.0, urgent=urgent)
            handle.add_done_callback(lambda _, name=name: ended.append(name))
            handles.append(handle)
            time.sleep(0.1)
        workers.collect(handles, deadline=30.0, stage="run")
    assert ended[-1] == "second"


def test_an_initialization_that_hangs_ends_in_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(worker_module, "INIT_TIMEOUT", 1.0)
    hang = tmp_path / "hang"
    hang.touch()
    with Workers(1, init=f"{CALLS}:hang_if_wanted", options={"hang": str(hang)}) as workers:
        outcome = call(workers, "double", 21)
        assert outcome.stage == "crash"
        assert outcome.fault == "setup"
        assert "hang_if_wanted did not return within 1 s" in outcome.message
        hang.unlink()
        assert call(workers, "double", 21).value == 42  # once the driver is well again


def test_an_initialization_that_fails_is_the_environments_fault():
    with Workers(1, init=f"{CALLS}:complain", options={}) as workers:
        outcome = call(workers, "double", 21)
    assert outcome == Outcome(
        stage="crash", message="the worker could not be set up: {}", fault="setup"
    )


@pytest.mark.slow
def test_a_forkserver_that_stops_is_replaced(monkeypatch):
    monkeypatch.setattr(forkserver, "FORK_TIMEOUT", 1.0)
    with Workers(2) as workers:
        pid, server = call(workers, "parent").value
        os.kill(server, signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        other, another = call(workers, "parent").value
    assert other != pid
    assert another != server
    assert processes.ended([server])


@pytest.mark.slow
def test_calls_meet_their_deadlines_while_the_forkserver_is_stopped(monkeypatch):
    monkeypatch.setattr(worker_module, "END_TIMEOUT", 1.0)
    with Workers(1) as workers:
        pid, server = call(workers, "parent").value
        os.kill(server, signal.SIGSTOP)
        try:
            assert call(workers, "sleep", 600.0, deadline=2.0).stage == "timeout"
        finally:
            os.kill(server, signal.SIGCONT)
        assert processes.ended([pid])
        assert call(workers, "double", 21).value == 42


# A session that is killed while its forkserver is stopped, and does not see the session end.
KILLED = f"""
import os, signal, sys
sys.path[:] = {sys.path!r}
from tvmtune.workers import Workers
with Workers(1) as pool:
    worker, server = pool.map("{CALLS}:parent", [()], deadline=60, stage="run")[0].value
    print(worker, server, flush=True)
    os.kill(server, signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_a_stopped_forkserver_ends_with_a_session_that_is_killed(tmp_path):
    note = tmp_path / "pids"
    with note.open("w") as output:  # not a pipe, which the forkserver would keep open
        subprocess.run([sys.executable, "-c", KILLED], stdout=output, timeout=120)
    left = [int(word) for word in note.read_text().split()]
    try:
        assert len(left) == 2
        assert processes.ended(left)
    finally:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_forkserver_that_is_killed_is_replaced(tmp_path):
    note = tmp_path / "pid"
    with Workers(1) as workers:
        _, server = call(workers, "parent").value
        handle = workers.submit(f"{CALLS}:start_and_sleep", (str(note), 600.0), 900.0)
        assert processes.soon(lambda: note.exists() and note.read_text() != "")
        os.kill(server, signal.SIGKILL)
        (lost,) = workers.collect([handle], deadline=900.0, stage="run")
        assert (lost.stage, lost.fault) == ("crash", "killed")
        assert lost.message == "the worker died: the forkserver died: SIGKILL"
        assert call(workers, "double", 21).value == 42


# A session whose clock jumps ahead by an hour while a call runs, as after a resume from suspend.
STEPPED_CLOCK = f"""
import sys, threading, time
sys.path[:] = {sys.path!r}
from tvmtune.workers import Workers
real = time.time
with Workers(1) as pool:
    pool.map("{CALLS}:double", [(1,)], deadline=60, stage="run")
    threading.Timer(0.5, lambda: setattr(time, "time", lambda: real() + 3600)).start()
    print(pool.map("{CALLS}:sleep", [(2.0,)], deadline=60, stage="run")[0].value)
"""


@pytest.mark.slow
def test_a_step_of_the_clock_ends_no_call():
    done = subprocess.run(
        [sys.executable, "-c", STEPPED_CLOCK], capture_output=True, text=True, timeout=120
    )
    assert (done.stdout, done.stderr) == ("2.0\n", "")


@pytest.mark.parametrize(
    ("function", "fault"),
    [("run_out_of_files", "files"), ("link_in_vain", "disk"), ("complain", "")],
)
def test_faults_of_the_environment_are_told_apart(workers, function, fault):
    arguments = ("no such register",) if function == "complain" else ()
    outcome = call(workers, function, *arguments)
    assert (outcome.stage, outcome.fault) == ("run", fault)
    assert call(workers, "double", 21).value == 42  # in a new worker, which has files again


def test_a_full_disk_is_the_environments_fault(workers, tmp_path):
    with disks.mounted(tmp_path / "disk", "size=1M"):
        outcome = call(workers, "fill_file", str(tmp_path / "disk" / "file"))
        assert (outcome.stage, outcome.fault) == ("run", "disk")
        fault, message = faults.present(tmp_path / "disk")
        assert (fault, message) == ("disk", f"No space left on device in {tmp_path / 'disk'}")
    assert faults.present(tmp_path) == ("", "")


# A session at its limit of open files.
NO_FILES = f"""
import os, sys
sys.path[:] = {sys.path!r}
from tvmtune.workers import Workers
with Workers(1, recycle=1) as pool:
    go = lambda: pool.map("{CALLS}:double", [(21,)], deadline=60, stage="run")[0]
    go()
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    outcome = go()
    for each in held:
        os.close(each)
    print(outcome.stage, outcome.fault, go().value)
"""


@pytest.mark.slow
def test_a_session_without_file_descriptors_recovers():
    done = subprocess.run(
        [sys.executable, "-c", NO_FILES], capture_output=True, text=True, timeout=120
    )
    assert (done.stdout, done.stderr) == ("crash files 42\n", "")


# A session that has no files, and no threads, when it makes its pool.
NOTHING_AT_FIRST = f"""
import os, sys, threading
sys.path[:] = {sys.path!r}
from tvmtune.workers import Workers
start = threading.Thread.start
def refuse(thread):
    raise RuntimeError("can't start new thread")
def go(pool):
    outcome = pool.map("{CALLS}:double", [(21,)], deadline=60, stage="run")[0]
    return outcome.value or (outcome.stage, outcome.fault, outcome.message)
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
with Workers(1) as pool:
    print(go(pool))
    for each in held:
        os.close(each)
    print(go(pool))
threading.Thread.start = refuse
with Workers(2) as pool:
    print(go(pool))
    threading.Thread.start = start
    print(go(pool))
"""


@pytest.mark.slow
def test_a_pool_made_without_files_or_threads_recovers():
    done = subprocess.run(
        [sys.executable, "-c", NOTHING_AT_FIRST], capture_output=True, text=True, timeout=120
    )
    assert done.stderr == ""
    files, after, threads, last = done.stdout.splitlines()
    assert files == "('crash', 'files', 'no worker could be started: Too many open files')"
    assert (
        threads == "('crash', 'processes', \"no worker could be started: can't start new thread\")"
    )
    assert (after, last) == ("42", "42")


# A session whose forkserver cannot be started, because no thread can.
NO_THREAD = f"""
import sys, threading
sys.path[:] = {sys.path!r}
from tvmtune.workers import Worker
start = threading.Thread.start
def refuse(thread):
    raise RuntimeError("can't start new thread")
threading.Thread.start = refuse
worker = Worker()
print(worker.call("{CALLS}:double", (21,), 60.0))
threading.Thread.start = start
print(worker.call("{CALLS}:double", (21,), 60.0).value)
worker.close()
"""


@pytest.mark.slow
def test_a_worker_made_without_threads_recovers():
    done = subprocess.run(
        [sys.executable, "-c", NO_THREAD], capture_output=True, text=True, timeout=120
    )
    assert done.stderr == ""
    assert "fault='processes'" in done.stdout
    assert done.stdout.endswith("\n42\n")


class Unsendable:
    """An argument that cannot be sent, because the disk is full."""

    def __reduce__(self):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_whatever_fails_in_the_session_names_its_fault(workers):
    outcome = call(workers, "size_of", Unsendable())
    assert (outcome.stage, outcome.fault) == ("run", "disk")
    assert call(workers, "double", 21).value == 42


# A session in a control group of little memory.
LITTLE_MEMORY = f"""
import sys
from pathlib import Path
Path(sys.argv[1], "cgroup.procs").write_text("0")
sys.path[:] = {sys.path!r}
from tvmtune.workers import Workers
with Workers(1) as pool:
    def go(function, *arguments):
        call = [arguments]
        return pool.map(f"{CALLS}:{{function}}", call, deadline=120, stage="run")[0]
    for function in ("take_all_memory", "link_until_memory_ends"):
        outcome = go(function)
        print(outcome.stage, outcome.fault)
    print(go("die_by", "SIGKILL").fault)
    print(go("double", 21).value)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs control groups")
def test_a_process_that_takes_all_memory_is_told_from_one_that_is_killed():
    with control_groups.limited(768 << 20) as group:
        done = subprocess.run(
            [sys.executable, "-c", LITTLE_MEMORY, str(group)],
            capture_output=True,
            text=True,
            timeout=300,
        )
    expected = ["crash memory", "run memory", "killed", "42"]
    assert (done.stdout.splitlines(), done.stderr) == (expected, "")


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


@pytest.mark.slow
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


@pytest.mark.parametrize("function", ["answer_in_vain", "answer_with_noise"])
def test_an_answer_that_cannot_be_read_is_an_error_of_the_call(worker, function):
    outcome = worker.call(f"{CALLS}:{function}", (), 60.0)
    assert outcome.stage == "run"
    assert outcome.message.startswith("the worker's answer cannot be read: ")
    assert worker.call(f"{CALLS}:double", (21,), 60.0).value == 42


@pytest.mark.parametrize("dies", [True, False])
def test_children_of_a_worker_end_with_it_even_without_its_shell(worker, tmp_path, dies):
    note = tmp_path / "pids"
    outcome = worker.call(f"{CALLS}:start_child_unwatched", (str(note), dies), 3.0)
    assert outcome.stage == ("crash" if dies else "timeout")
    left = process_ids(note)
    try:
        assert processes.ended(left)
    finally:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


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
    while worker.calls == 0:
        time.sleep(0.01)
    assert worker._child is not None
    pid = worker._child.pid
    time.sleep(0.5)
    worker.close()
    thread.join(10)
    assert [outcome.stage for outcome in outcomes] == ["crash"]
    assert not Path(f"/proc/{pid}").exists()
    assert worker.call(f"{CALLS}:double", (1,), 60.0) == Outcome(
        stage="crash", message="the worker is closed"
    )
