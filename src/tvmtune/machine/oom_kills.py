"""Processes that the kernel has killed because memory ran out: the evidence for what a SIGKILL is."""

from __future__ import annotations

import contextlib
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_MACHINE = Path("/proc/vmstat")


def count() -> int | None:
    """Kills in this process's control group (version 2 or 1), by whichever limit, or on the machine if
    that cannot be read; None if neither can. The kernel counts a kill before it sends the signal."""
    for path, name in _counters():
        with contextlib.suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                key, _, value = line.partition(" ")
                if key == name:
                    return int(value)
    return None


def any_since(before: int | None) -> bool:
    """Whether the kernel is known to have killed a process since :func:`count` returned ``before``."""
    now = count()
    return before is not None and now is not None and now > before


def _counters() -> list[tuple[Path, str]]:
    found = []
    with contextlib.suppress(OSError, ValueError):
        for line in _OWN_GROUPS.read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            # Inside a container its own group is mounted as the root.
            for place in (group.lstrip("/"), ""):
                if not controllers:
                    found.append((_GROUPS / place / "memory.events", "oom_kill"))
                elif "memory" in controllers.split(","):
                    found.append((_GROUPS / "memory" / place / "memory.oom_control", "oom_kill"))
    return [*found, (_MACHINE, "oom_kill")]
