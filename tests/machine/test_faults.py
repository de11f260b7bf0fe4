"""Faults of the environment are recognized, and nothing else is taken for one."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tvmtune.machine import exit_codes, faults, oom_kills


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """A function that sets the number of kills that the control group of this process reports."""
    events = tmp_path / "group" / "memory.events"
    events.parent.mkdir()
    own = tmp_path / "own"
    own.write_text("1:cpu:/other\n0::/group\n")
    monkeypatch.setattr(oom_kills, "_GROUPS", tmp_path)
    monkeypatch.setattr(oom_kills, "_OWN_GROUPS", own)
    monkeypatch.setattr(oom_kills, "_MACHINE", tmp_path / "vmstat")

    def report(kills: int) -> None:
        events.write_text(f"low 0\noom 7\noom_kill {kills}\noom_group_kill 0\n")

    return report


def test_a_sigkill_is_lack_of_memory_only_if_the_kernel_says_so(kernel):
    kernel(3)
    before = oom_kills.count()
    assert before == 3
    assert faults.of_exit(-signal.SIGKILL, before) == "killed"
    killed = subprocess.CalledProcessError(-signal.SIGKILL, "ld", b"", b"")
    assert faults.of_error(killed, before) == "killed"
    kernel(4)
    assert faults.of_exit(-signal.SIGKILL, before) == "memory"
    assert faults.of_error(killed, before) == "memory"
    assert faults.of_exit(128 + signal.SIGKILL, before) == "memory"  # through a shell
    assert faults.of_text("collect2: fatal error: ld terminated with signal 9", before) == "memory"
    assert faults.of_exit(-signal.SIGKILL, None) == "killed"
    assert faults.of_exit(-signal.SIGSEGV, before) == ""


def test_kills_are_counted_where_they_can_be(tmp_path, monkeypatch):
    monkeypatch.setattr(oom_kills, "_GROUPS", tmp_path)
    monkeypatch.setattr(oom_kills, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(oom_kills, "_MACHINE", tmp_path / "vmstat")
    assert oom_kills.count() is None
    assert not oom_kills.any_since(None)
    (tmp_path / "vmstat").write_text("oom_kill_disable 9\noom_kill 1\n")
    assert oom_kills.count() == 1
    first = tmp_path / "memory" / "process" / "memory.oom_control"
    first.parent.mkdir(parents=True)
    first.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    (tmp_path / "own").write_text("4:memory:/process\n0::/\n")
    assert oom_kills.count() == 2
    (tmp_path / "own").write_text("0::/outside/of/this/container\n")
    (tmp_path / "memory.events").write_text("oom_kill 3\n")
    assert oom_kills.count() == 3


@pytest.mark.parametrize(
    ("code", "text", "fault"),
    [
        (3, "exit code 3", ""),
        (-signal.SIGILL, "SIGILL", ""),
        (-signal.SIGTERM, "SIGTERM", "killed"),
        (-signal.SIGXCPU, "SIGXCPU", "killed"),
        (-signal.SIGXFSZ, "SIGXFSZ", "file size"),
        (-63, "signal 63", ""),
    ],
)
def test_exit_codes_tell_who_ended_a_process(code, text, fault):
    assert exit_codes.describe(code) == text
    assert faults.of_exit(code, None) == fault


def raised(function: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as caught:
        function()
    return caught.value


def test_what_an_error_hides_is_not_its_cause():
    def hide() -> None:
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            raise ValueError("no such register: zmm99") from None

    def replace() -> None:
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            raise ValueError("no such register: zmm99")  # noqa: B904

    def explain() -> None:
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            raise RuntimeError("no kernel") from OSError(errno.EMFILE, "no file")

    assert faults.of_error(raised(hide)) == ""
    assert faults.of_error(raised(replace)) == "disk"
    assert faults.of_error(raised(explain)) == "files"


def test_errors_that_cause_each_other_end():
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert faults.of_error(first) == ""


def test_a_socket_or_a_lock_that_would_block_is_no_lack_of_processes(tmp_path):
    mine, theirs = socket.socketpair()
    with mine, theirs:
        mine.setblocking(False)
        assert faults.of_error(raised(lambda: mine.recv(1))) == ""
    with (tmp_path / "lock").open("w") as held, (tmp_path / "lock").open("w") as other:
        fcntl.flock(held, fcntl.LOCK_EX)
        flags = fcntl.LOCK_EX | fcntl.LOCK_NB
        assert faults.of_error(raised(lambda: fcntl.flock(other, flags))) == ""
    assert faults.of_text("Socket SockChannel::Recv Error:Resource temporarily unavailable") == ""


@pytest.mark.parametrize(
    "text",
    [
        "gcc: fatal error: cannot execute 'cc1': vfork: Resource temporarily unavailable",
        "libgomp: Thread creation failed: Resource temporarily unavailable",
        "terminate called after throwing an instance of 'std::system_error'\n"
        "  what():  Resource temporarily unavailable",
        "InternalError: Resource temporarily unavailable",
        "RuntimeError: can't start new thread",
        "sh: 1: Cannot fork",
    ],
)
def test_lack_of_processes_is_recognized_in_messages(text):
    assert faults.of_text(text) == "processes"


# At the limit of processes, which root does not have: threads, forks and what subprocess starts fail.
AT_THE_LIMIT = """
import os, resource, subprocess, threading
from tvmtune.machine import faults
os.setuid(65534)
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
for start in (lambda: subprocess.run(["true"]), threading.Thread(target=int).start):
    try:
        start()
        print("started")
    except (OSError, RuntimeError) as error:
        print(type(error).__name__, faults.of_error(error))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user without processes")
def test_a_fork_that_fails_is_lack_of_processes():
    lacks = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{AT_THE_LIMIT}"],
        capture_output=True,
        text=True,
    )
    assert lacks.stdout == "BlockingIOError processes\nRuntimeError processes\n", lacks.stderr


def test_the_present_fault_of_a_directory_that_is_gone(tmp_path):
    assert faults.present(tmp_path) == ("", "")
    fault, message = faults.present(tmp_path / "gone")
    assert fault == "disk"
    assert message.endswith(f"in {Path(tmp_path / 'gone')}")
