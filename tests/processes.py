"""Which processes there are, from /proc: what a test starts it must also see end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

MARK = "TVMTUNE_TEST_MARK"
"""Set it in a process's environment to find it, and all that it starts, again."""


def marked(value: str) -> dict[int, str]:
    """Command lines by process id of those that run with ``MARK`` set to ``value``."""
    wanted = f"{MARK}={value}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                found[int(entry.name)] = b" ".join(words).decode(errors="replace")
        except OSError:  # it has ended meanwhile, or is somebody else's
            continue
    return found


def after_a_while(value: str, *, at_most: float = 20.0) -> dict[int, str]:
    """What is left of :func:`marked` once it is empty or ``at_most`` seconds have gone by."""
    end = time.monotonic() + at_most
    while (left := marked(value)) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def ended(pids: Iterable[int]) -> bool:
    """Whether all of these have ended, or do so soon; zombies have."""
    waited = list(pids)
    return soon(lambda: all(state(pid)[:1] in ("", "Z") for pid in waited))


def soon(happened: Callable[[], bool], *, at_most: float = 20.0) -> bool:
    """Whether it has happened within ``at_most`` seconds."""
    end = time.monotonic() + at_most
    while not (found := happened()) and time.monotonic() < end:
        time.sleep(0.01)
    return found


def state(pid: int) -> str:
    """What /proc says of a process behind its name: its state, its parent and so on; nothing once it
    is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2]
    except OSError:
        return ""
