"""Faults of the environment: the machine lacks what any work needs, such as disk space or memory."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Literal

from tvmtune.errors import MEMORY

Fault = Literal["", "disk", "file size", "files", "processes", "memory", "start", "setup", "board"]
"""What is missing; ``"setup"``: the initialization of worker processes; ``""``: nothing."""

REMEDIES: dict[Fault, str] = {
    "disk": "free some space on the disk",
    "file size": "raise the limit of a file's size (ulimit -f)",
    "files": "raise the limit of open files (ulimit -n), or close programs",
    "processes": "raise the limit of processes (ulimit -u), or close programs",
    "memory": "free some memory",
    "start": "free some memory",
    "setup": "see whether the device and its driver work",
    "board": "see whether the boards and the network work",
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
_SIGNS: dict[Fault, tuple[str, ...]] = {
    "disk": tuple(os.strerror(n) for n in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)),
    "file size": (os.strerror(errno.EFBIG),),
    "files": tuple(os.strerror(n) for n in (errno.EMFILE, errno.ENFILE)),
    "processes": (os.strerror(errno.EAGAIN), "can't start new thread"),
    "memory": MEMORY,
}
"""Parts of messages, for errors that reach Python as text only: from C++, linkers, boards."""
_PROBE_SIZE = 1 << 20
"""Bytes that must fit on the disk."""


def of_text(text: str) -> Fault:
    """The fault that a message tells of."""
    for fault, signs in _SIGNS.items():
        if any(sign in text for sign in signs):
            return fault
    return ""


def of_error(error: BaseException) -> Fault:
    """The fault that caused an exception."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, MemoryError):
            return "memory"
        if isinstance(seen, OSError) and seen.errno in _ERRNO:
            return _ERRNO[seen.errno]
        if isinstance(seen, subprocess.CalledProcessError):
            if seen.returncode == -signal.SIGKILL:  # the kernel, out of memory
                return "memory"
            for output in (seen.stderr, seen.output):
                text = output.decode(errors="replace") if isinstance(output, bytes) else output
                if text and (fault := of_text(text)):
                    return fault
        if fault := of_text(f"{type(seen).__name__}: {seen}"):
            return fault
        seen = seen.__cause__ or seen.__context__
    return ""


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


def oom_kills() -> int | None:
    """How many processes the kernel has killed because memory ran out: those of this process's control
    group, or of the machine; None if that cannot be read."""
    for path, name in _oom_counters():
        with contextlib.suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                key, _, value = line.partition(" ")
                if key == name:
                    return int(value)
    return None


def _oom_counters() -> list[tuple[Path, str]]:
    groups = Path("/sys/fs/cgroup")
    found = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            # Inside a container its own group is mounted as the root.
            for place in (group.lstrip("/"), ""):
                if not controllers:
                    found.append((groups / place / "memory.events", "oom_kill"))
                elif "memory" in controllers.split(","):
                    found.append((groups / "memory" / place / "memory.oom_control", "oom_kill"))
    return [*found, (Path("/proc/vmstat"), "oom_kill")]
