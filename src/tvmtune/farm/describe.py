"""What a board is, as its system tells: read there, sent as JSON. No TVM."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

from tvmtune import hwcap, system

_ROOT = Path("/")


def describe(root: Path = _ROOT) -> dict[str, Any]:
    """``machine``, ``cpu``, ``features`` (names of /proc/cpuinfo), ``cpus``, ``clusters`` (logical CPUs
    and largest frequency in kHz of each kind of core, the quickest first), ``memory_bytes``,
    ``free_bytes`` (memory that can be had now), ``versions``, ``os``."""
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    known = system.fingerprint()
    return {
        "machine": platform.machine(),
        "cpu": known["cpu"],
        "features": features(root),
        "cpus": system.count_cpus().usable,
        "clusters": clusters(cpus, root),
        "memory_bytes": known["memory_bytes"],
        "free_bytes": _available(root),
        "os": known["os"],
        "versions": system.versions(),
    }


def features(root: Path = _ROOT) -> list[str]:
    """The instruction set's extensions under Linux's names, sorted."""
    if root == _ROOT and (told := hwcap.names()):
        return told
    text = _read(root / "proc/cpuinfo")
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return sorted(set(found.group(1).split())) if found else []


def clusters(cpus: list[int], root: Path = _ROOT) -> list[dict[str, Any]]:
    """CPUs grouped by what they can do, the quickest group first.

    Linux states a capacity for each CPU of big.LITTLE systems; elsewhere the largest frequency tells
    them apart, and where there is none, all are one group.
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
    found = re.search(r"^MemAvailable:\s*(\d+) kB", _read(root / "proc/meminfo"), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 0


def _number(text: str) -> int:
    return int(text) if text.strip().isdecimal() else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
