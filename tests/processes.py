"""Find processes through /proc, to check that a test leaves none behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

MARK = "TVMTUNE_TEST_MARK"
"""Environment variable that marks a process and all its descendants."""


def marked(value: str) -> dict[int, str]:
    """Command lines, by process id, of processes with ``MARK`` set to ``value``."""
    wanted = f"{MARK}={value}".encode()
    commands = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                commands[int(entry.name)] = b" ".join(words).decode(errors="replace")
        except OSError:  # it has ended, or belongs to another user
            continue
    return commands


def after_a_while(value: str, *, at_most: float = 20.0) -> dict[int, str]:
    """The result of :func:`marked` once it is empty, or after ``at_most`` seconds."""
    end = time.monotonic() + at_most
    while (left := marked(value)) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def ended(pids: Iterable[int]) -> bool:
    """Whether all of these end within :func:`soon`'s limit; zombies count as ended."""
    waited = list(pids)
    return soon(lambda: all(state(pid)[:1] in ("", "Z") for pid in waited))


def soon(happened: Callable[[], bool], *, at_most: float = 20.0) -> bool:
    """Whether ``happened()`` becomes true within ``at_most`` seconds."""
    end = time.monotonic() + at_most
    while not (result := happened()) and time.monotonic() < end:
        time.sleep(0.01)
    return result


def state(pid: int) -> str:
    """The fields of /proc/PID/stat after the name (state, parent, ...); empty once it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2]
    except OSError:
        return ""
