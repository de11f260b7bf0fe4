"""How many CPUs this process may use, what they are called, and threads set by environment variables.

This is read from ``/proc`` and ``/sys`` by hand: psutil, which boards lack (``docs/farm.md``), counts
the physical cores of the whole machine instead of those in the affinity mask, does not know the limits
of control groups, and has no names of CPUs.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tvmtune import checks

_ROOT = Path("/")


@dataclass(frozen=True)
class CpuCount:
    """Numbers of CPUs, from the whole machine down to what this process should use."""

    seen: int
    """Logical CPUs of the machine."""
    allowed: int
    """Logical CPUs that the process may be scheduled on."""
    physical: int
    """Cores among the allowed CPUs: hyper-threads of one core count once."""
    quota: float | None
    """CPU seconds per second that the control group allows; None if it sets no limit."""
    usable: int
    """Threads that a compute-bound program should start."""


def count_cpus(allowed: set[int] | None = None, root: Path = _ROOT) -> CpuCount:
    """Count the CPUs; tests pass another affinity mask and another root folder."""
    seen = os.cpu_count() or 1
    if allowed is None:
        if hasattr(os, "sched_getaffinity"):
            allowed = set(os.sched_getaffinity(0))
        else:
            allowed = set(range(seen))
    physical = _physical(allowed, root)
    quota = _quota(root)
    usable = physical if quota is None else max(1, min(physical, int(quota)))
    return CpuCount(max(seen, len(allowed)), len(allowed), physical, quota, usable)


def usable_cpus() -> int:
    """Physical cores that this process may use, within its affinity mask and control group."""
    return count_cpus().usable


@lru_cache(maxsize=1)
def cpu_model() -> str:
    """The CPU's marketing name, or its architecture if it has none."""
    if sys.platform == "darwin":
        return _sysctl("machdep.cpu.brand_string") or platform.machine()
    text = _read(Path("/proc/cpuinfo")) or ""
    # Arm kernels name the CPU under other keys, or only in the device tree.
    for key in ("model name", "Model", "Hardware", "cpu model"):
        match = re.search(rf"^{key}\s*:\s*(.+)$", text, re.MULTILINE)
        if match:
            return " ".join(match.group(1).split())
    board = (_read(Path("/proc/device-tree/model")) or "").rstrip("\0")
    return board or platform.processor() or platform.machine()


def set_threads(threads: int) -> None:
    """Have this process and its children compute with ``threads`` threads.

    This sets environment variables, so call it before TVM, NumPy or a peer is imported: each reads
    them once. Raises UsageError if ``threads`` is less than 1.
    """
    checks.at_least("the number of threads", threads, 1)
    for name in ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    cpus = count_cpus()
    if cpus.allowed < cpus.seen:
        # TVM binds its threads to CPUs 0, 1, ... and ignores the affinity mask: under
        # `taskset -c 1` it would run on CPU 0.
        os.environ.setdefault("TVM_BIND_THREADS", "0")


def _physical(allowed: set[int], root: Path) -> int:
    if sys.platform == "darwin" and root == _ROOT:
        return min(len(allowed), int(_sysctl("hw.physicalcpu") or len(allowed)))
    cores = set()
    for cpu in allowed:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        # Siblings share one text, such as "0,4"; a CPU without one counts as a core.
        cores.add(_read(topology / "thread_siblings_list") or str(cpu))
    return max(1, len(cores))


def _quota(root: Path) -> float | None:
    """The tightest CPU limit of this process's control group (v1 or v2) and of its ancestors."""
    mount = root / "sys/fs/cgroup"
    limits = []
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        _, controllers, path = parts
        if not controllers:
            tops = [mount, mount / "unified"]
        elif "cpu" in controllers.split(","):
            tops = [mount / controllers, mount / "cpu"]
        else:
            continue
        # Inside a container the path may be the host's: folders that do not exist are skipped.
        names = [name for name in path.split("/") if name not in ("", "..")]
        for top in tops:
            for depth in range(len(names) + 1):
                limit = _limit(top.joinpath(*names[:depth]))
                if limit is not None:
                    limits.append(limit)
    return min(limits, default=None)


def _limit(group: Path) -> float | None:
    both = (_read(group / "cpu.max") or "").split()
    if len(both) != 2:
        both = [_read(group / "cpu.cfs_quota_us") or "", _read(group / "cpu.cfs_period_us") or ""]
    try:
        quota, period = int(both[0]), int(both[1])
    except ValueError:  # "max": no limit
        return None
    return quota / period if quota > 0 and period > 0 else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _sysctl(name: str) -> str:
    try:
        done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
