"""Describe a board as JSON: a board reads this of its own system and sends it to clients. No TVM.

Boards have no psutil (``docs/farm.md``), so this reads ``/proc`` and ``/sys`` by hand.
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

from tvmtune.machine import cpu_count, cpu_features, fingerprint, package_versions

_ROOT = Path("/")


def describe(root: Path = _ROOT) -> dict[str, Any]:
    """The board's description: ``machine``, ``cpu``, ``features`` (named as in /proc/cpuinfo),
    ``cpus``, ``clusters`` (logical CPUs and maximum frequency in kHz of each kind of core, fastest
    first), ``memory_bytes``, ``free_bytes`` (available memory), ``versions``, ``os``."""
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    host = fingerprint.fingerprint()
    return {
        "machine": platform.machine(),
        "cpu": host["cpu"],
        "features": cpu_features.available(root / "proc/cpuinfo"),
        "cpus": cpu_count.count_cpus().usable,
        "clusters": clusters(cpus, root),
        "memory_bytes": host["memory_bytes"],
        "free_bytes": _available(root),
        "os": host["os"],
        "versions": package_versions.versions(),
    }


def clusters(cpus: list[int], root: Path = _ROOT) -> list[dict[str, Any]]:
    """Logical CPUs grouped by kind of core, fastest first.

    Linux reports a capacity for each CPU of big.LITTLE systems; otherwise the maximum frequency
    distinguishes them; without that, all CPUs form one group.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for cpu in cpus:
        folder = root / f"sys/devices/system/cpu/cpu{cpu}"
        capacity = _number(_read(folder / "cpu_capacity"))
        frequency = _number(_read(folder / "cpufreq/cpuinfo_max_freq"))
        groups.setdefault((capacity, frequency), []).append(cpu)
    return [
        {"cpus": members, "max_khz": key[1]}
        for key, members in sorted(groups.items(), reverse=True)
    ]


def _available(root: Path) -> int:
    match = re.search(r"^MemAvailable:\s*(\d+) kB", _read(root / "proc/meminfo"), re.MULTILINE)
    return int(match.group(1)) * 1024 if match else 0


def _number(text: str) -> int:
    return int(text) if text.strip().isdecimal() else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
