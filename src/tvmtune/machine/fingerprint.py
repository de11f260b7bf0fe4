"""The fingerprint of this host, which logs and libraries record."""

from __future__ import annotations

import os
import platform
from typing import Any

from tvmtune.machine import cpu_count
from tvmtune.types import digest


def fingerprint() -> dict[str, Any]:
    """Properties that distinguish this host, as plain JSON; its name only as a hash."""
    cpus = cpu_count.count_cpus()
    return {
        "host": digest(platform.node()),
        "machine": platform.machine(),
        "cpu": cpu_count.cpu_model(),
        "cpus": {"seen": cpus.seen, "usable": cpus.usable},
        "memory_bytes": _memory_bytes(),
        "os": _os_name(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _memory_bytes() -> int:
    # Not psutil.virtual_memory(): boards have no psutil.
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 0


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return f"{platform.system()} {platform.release()}"
