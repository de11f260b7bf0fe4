"""Faults of the environment: the machine lacks what any work needs, such as disk space or memory."""

from __future__ import annotations

import errno
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from tvmtune.errors import MEMORY
from tvmtune.machine import exit_codes, oom_kills

Fault = Literal[
    "", "disk", "file size", "files", "processes", "memory", "start", "killed", "setup", "board"
]
"""What is missing. ``"start"``: memory, before a candidate was touched; ``"killed"``: nothing, but
something outside ends processes; ``"setup"``: worker processes that can be set up; ``""``: no fault."""

REMEDIES: dict[Fault, str] = {
    "disk": "free some space on the disk",
    "file size": "raise the limit on file sizes (ulimit -f)",
    "files": "raise the limit on open files (ulimit -n), or close programs",
    "processes": "raise the limit on processes (ulimit -u), or close programs",
    "memory": "free some memory",
    "start": "free some memory",
    "killed": "find what kills tvmtune's processes: a watchdog, a CPU time limit (ulimit -t), a user",
    "setup": "check that the device and its driver work, and that the machine is not overloaded",
    "board": "check that the boards and the network connection work",
}
_ERRNO: dict[int, Fault] = {
    errno.ENOSPC: "disk",
    errno.EDQUOT: "disk",
    errno.EFBIG: "file size",
    errno.EROFS: "disk",
    errno.EMFILE: "files",
    errno.ENFILE: "files",
    errno.EAGAIN: "processes",
    errno.ENOMEM: "memory",
}
_SIGNALS: dict[int, Fault] = {
    signal.SIGKILL: "killed",
    signal.SIGTERM: "killed",
    signal.SIGXCPU: "killed",
    signal.SIGXFSZ: "file size",
}
"""Signals that no candidate sends to itself."""
_SIGNS: dict[Fault, tuple[str, ...]] = {
    "disk": (
        "No space left on device",
        "Disk quota exceeded",
        "Disc quota exceeded",
        "Read-only file system",
    ),
    "file size": ("File too large",),
    "files": ("Too many open files", "No file descriptors available"),
    "processes": ("can't start new thread", "Cannot fork", "Cannot create thread"),
    "memory": MEMORY,
    "killed": (  # what the drivers of GCC and Clang say of a compiler or linker
        "Killed signal terminated program",
        "terminated with signal 9",
        "unable to execute command: Killed",
    ),
}
"""Parts of messages, for errors that reach Python as text only: from C++, linkers, boards. In English,
which workers see to (:mod:`tvmtune.workers.worker`), and not by strerror, which may be in the user's
language here: of glibc, musl and macOS."""
_NO_PROCESS = re.compile(
    r"^(?:.*(?i:fork|spawn|thread|clone).*|\w*(?:Error|error|exception): *|.*what\(\): *)?"
    r"Resource temporarily unavailable",
    re.MULTILINE,
)
"""EAGAIN of a process or a thread, which std::thread reports without another word. Sockets and locks
report it, too."""
_FORKING = re.compile(r"(?:^|/)(?:subprocess|multiprocessing/\w+|threading)\.py$")
"""Modules whose BlockingIOError is that of a fork."""
_PROBE_SIZE = 1 << 20
"""Bytes that must fit on the disk."""


def of_text(text: str, kills: int | None = None) -> Fault:
    """The fault that a message tells of; ``kills``: see :func:`of_exit`."""
    for fault, signs in _SIGNS.items():
        if any(sign in text for sign in signs):
            return _of_kill(kills) if fault == "killed" else fault
    return "processes" if _NO_PROCESS.search(text) else ""


def of_exit(code: int, kills: int | None) -> Fault:
    """The fault that ended a process with this exit code, negative for a signal.

    ``kills`` is what :func:`tvmtune.machine.oom_kills.count` returned before: a SIGKILL means lack of
    memory only if the kernel has killed a process since.
    """
    number = exit_codes.ended_by(code)
    return _of_kill(kills) if number == signal.SIGKILL else _SIGNALS.get(number, "")


def of_errno(number: int) -> Fault:
    """The fault that an error number of a fork, or of a call that cannot block, tells of."""
    return _ERRNO.get(number, "")


def of_error(error: BaseException, kills: int | None = None) -> Fault:
    """The fault that caused an exception; ``kills``: see :func:`of_exit`."""
    for each in _causes(error):
        if fault := _of_one(each, kills):
            return fault
    return ""


def _of_one(error: BaseException, kills: int | None) -> Fault:
    if isinstance(error, MemoryError):
        return "memory"
    if isinstance(error, BlockingIOError):
        return "processes" if _is_of_fork(error) else ""
    if isinstance(error, OSError) and error.errno in _ERRNO:
        return of_errno(error.errno)
    if isinstance(error, subprocess.CalledProcessError):
        for output in (error.stderr, error.output):
            text = output.decode(errors="replace") if isinstance(output, bytes) else output
            if text and (fault := of_text(text, kills)):
                return fault
        if fault := of_exit(error.returncode, kills):
            return fault
    return of_text(f"{type(error).__name__}: {error}", kills)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exception and what caused it, as a traceback would show them."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        yield each
        seen.add(id(each))
        hidden = each.__suppress_context__  # set by "raise ... from", too
        each = each.__cause__ if hidden else each.__context__


def _is_of_fork(error: BlockingIOError) -> bool:
    """Whether it was raised where processes and threads are started: a socket, a pipe and a lock raise
    the same."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and bool(_FORKING.search(trace.tb_frame.f_code.co_filename))


def _of_kill(kills: int | None) -> Fault:
    return "memory" if oom_kills.any_since(kills) else "killed"


def present(directory: Path) -> tuple[Fault, str]:
    """The fault that there is now, with its message: tries to write to ``directory``, to open a file
    and to start a thread. Takes about a millisecond. Memory cannot be tested."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(bytes(_PROBE_SIZE))
            file.flush()
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
    except (OSError, RuntimeError) as error:
        fault = of_error(error)
        if isinstance(error, OSError):
            fault = fault or "disk"  # the directory is gone, say
        where = f" in {directory}" if fault == "disk" else ""
        text = error.strerror if isinstance(error, OSError) else None
        return fault, f"{text or error}{where}" if fault else ""
    return "", ""
