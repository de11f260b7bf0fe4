"""What this machine offers: CPUs, versions, a linker. TVM is not imported here."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from tvmtune.errors import TvmtuneError, UsageError, nearest
from tvmtune.types import Device, digest

PINS = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}
"""The versions that work together, as ``pyproject.toml`` asks for them."""

_ROOT = Path("/")


@dataclass(frozen=True)
class CpuCount:
    """How many CPUs there are, from the machine's down to what this process should use."""

    seen: int
    """Logical CPUs of the machine."""
    allowed: int
    """Logical CPUs that the process may be scheduled on."""
    physical: int
    """Cores among the allowed ones: hyper-threads of one core count once."""
    quota: float | None
    """CPUs' worth of time that the control group grants, or None where it sets no limit."""
    usable: int
    """Threads that a compute-bound program should start."""


def count_cpus(allowed: set[int] | None = None, root: Path = _ROOT) -> CpuCount:
    """Count the CPUs; ``allowed`` and ``root`` (in place of ``/``) are for looking elsewhere."""
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
    """Physical cores that this process may really use: affinity and control group included."""
    return count_cpus().usable


def _physical(allowed: set[int], root: Path) -> int:
    if sys.platform == "darwin" and root == _ROOT:
        return min(len(allowed), int(_sysctl("hw.physicalcpu") or len(allowed)))
    cores = set()
    for cpu in allowed:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        # Siblings share one text, such as "0,4"; a CPU that tells nothing is a core of its own.
        cores.add(_read(topology / "thread_siblings_list") or str(cpu))
    return max(1, len(cores))


def _quota(root: Path) -> float | None:
    """The tightest CPU limit of this process's control group (v1 or v2) and those around it."""
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
        # Inside a container the path may be the host's: what does not exist is passed over.
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


@lru_cache(maxsize=1)
def cpu_model() -> str:
    """The CPU's name for people, or its architecture where it has none."""
    if sys.platform == "darwin":
        return _sysctl("machdep.cpu.brand_string") or platform.machine()
    text = _read(Path("/proc/cpuinfo")) or ""
    # Arm kernels name the CPU under other keys, or only in the device tree.
    for key in ("model name", "Model", "Hardware", "cpu model"):
        found = re.search(rf"^{key}\s*:\s*(.+)$", text, re.MULTILINE)
        if found:
            return " ".join(found.group(1).split())
    board = (_read(Path("/proc/device-tree/model")) or "").rstrip("\0")
    return board or platform.processor() or platform.machine()


def fingerprint() -> dict[str, Any]:
    """What tells this host from another, as plain JSON; the host's name stands as a hash only."""
    cpus = count_cpus()
    return {
        "host": digest(platform.node()),
        "machine": platform.machine(),
        "cpu": cpu_model(),
        "cpus": {"seen": cpus.seen, "usable": cpus.usable},
        "memory_bytes": _memory_bytes(),
        "os": _os_name(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 0


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return f"{platform.system()} {platform.release()}"


def version_of(*distributions: str) -> str | None:
    """Version of the first of these distributions that is installed, or None."""
    for name in distributions:
        try:
            found: str | None = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if found:
            return found
    return None


def versions() -> dict[str, str | None]:
    """Versions of what results depend on, without importing any of it; None if not installed."""
    return {
        "tvmtune": version_of("tvmtune"),
        "apache-tvm": version_of("apache-tvm"),
        "apache-tvm-ffi": version_of("apache-tvm-ffi"),
        "numpy": version_of("numpy"),
        "xgboost": version_of("xgboost", "xgboost-cpu"),
    }


def check_pins() -> None:
    """Refuse versions of TVM that are not :data:`PINS`; call it before TVM is imported.

    Raises TvmtuneError naming each wrong one and the command that puts it right.
    """
    wrong = []
    for name, wanted in PINS.items():
        found = version_of(name)
        if found is None:
            wrong.append(f"{name} is not installed (needed: {wanted})")
        elif found != wanted:
            wrong.append(f"{name} is {found}, not {wanted}")
    if wrong:
        raise TvmtuneError(
            f"{'; '.join(wrong)}. tvmtune works with exactly these versions: with other versions "
            f"of tvm-ffi, TVM's search crashes (segfault in TuneContext). Run: {pins_remedy()}"
        )


def pins_remedy() -> str:
    """The shell command that installs the pinned versions into this Python."""
    wanted = " ".join(f"{name}=={version}" for name, version in PINS.items())
    return f"{sys.executable or 'python3'} -m pip install {wanted}"


def set_threads(threads: int) -> None:
    """Have this process and its children compute with ``threads`` threads.

    It works through the environment, so call it before TVM, NumPy or a peer is imported: each
    reads these variables once. Raises UsageError if ``threads`` is less than 1.
    """
    if threads < 1:
        raise UsageError(f"the number of threads must be at least 1, not {threads}")
    for name in ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    cpus = count_cpus()
    if cpus.allowed < cpus.seen:
        # TVM binds its threads to CPUs 0, 1, ... whatever the affinity says: under `taskset -c 1`
        # it would run on CPU 0.
        os.environ.setdefault("TVM_BIND_THREADS", "0")


def runs_here(mtriple: str) -> bool:
    """Whether this machine runs code for an LLVM triple; an empty one means this machine's."""
    return not mtriple or runs_on(mtriple, platform.machine())


def can_run(device: Device) -> bool:
    """Whether this machine runs a device's kernels."""
    return not device.absent and runs_here(device.mtriple)


def runs_on(mtriple: str, machine: str) -> bool:
    """Whether a machine, by the name that ``uname -m`` has for it, runs code for an LLVM triple."""
    return _machine(mtriple) == _machine(machine)


def find_linker(mtriple: str = "") -> list[str]:
    """Command prefix of a linker that takes ``-shared -o LIBRARY OBJECT...``, for this machine or for
    the LLVM triple of another.

    ``TVMTUNE_LINKER`` (a command, arguments allowed) wins, for other machines before ``TVM_NDK_CC``,
    which names the compiler of Android's NDK, or another cross compiler. The bare linkers come before
    the compilers' drivers, which take three times as long and which TVM's objects have no need of.
    Raises TvmtuneError if there is none.
    """
    android = "android" in mtriple
    variables = ["TVMTUNE_LINKER"] if runs_here(mtriple) and not android else [*_LINKERS]
    for variable in variables:
        if command := shlex.split(os.environ.get(variable, "")):
            if variable == "TVM_NDK_CC" and "android" in command[0] and not android:
                continue  # what it links loads on Android only
            if shutil.which(command[0]) is None:
                raise TvmtuneError(f"{variable} names '{command[0]}', which cannot be run")
            return command
    if android:
        raise TvmtuneError(
            "libraries for Android are linked by the C++ compiler of its NDK: name it in TVM_NDK_CC, "
            "e.g. TVM_NDK_CC=$NDK/toolchains/llvm/prebuilt/linux-x86_64/bin/"
            "aarch64-linux-android24-clang++."
        )
    drivers = ["gcc", "cc", "clang"]
    names = drivers if sys.platform == "darwin" else ["ld.lld", "ld", *drivers]
    package = "binutils"
    if not runs_here(mtriple):
        machine = _machine(mtriple)
        prefix = _GNU.get(machine, f"{machine}-linux-gnu")
        names = ["ld.lld", f"{prefix}-ld", f"{prefix}-gcc"]
        package = "lld"
    for name in names:
        path = shutil.which(name)
        if path is not None:
            # The cross compiler may come without the start files and libraries of its system.
            return [path, "-nostdlib"] if name.endswith("-gcc") else [path]
    if runs_here(mtriple):
        raise TvmtuneError(
            f"no linker found (looked for {', '.join(names)}). On Debian or Ubuntu: sudo apt-get "
            f"install {package}. Or name one in TVMTUNE_LINKER."
        )
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "ld.lld"]
    raise TvmtuneError(
        f"no linker for {mtriple} found (looked for {', '.join(names)}). Run pip install ziglang, or "
        f"on Debian or Ubuntu: sudo apt-get install {package}. Or name one in TVMTUNE_LINKER."
    )


_LINKERS = ("TVMTUNE_LINKER", "TVM_NDK_CC")
_GNU = {"arm": "arm-linux-gnueabihf"}
"""What Debian puts before the names of its cross tools, where it is not MACHINE-linux-gnu."""


def _machine(triple: str) -> str:
    """The processor that a triple, or ``uname``, names."""
    name = triple.lower().split("-")[0]
    if name.startswith("armv") and "64" not in name:
        return "arm"
    return {"arm64": "aarch64", "amd64": "x86_64", "thumbv7a": "arm"}.get(name, name)


def check_processor(mcpu: str, mtriple: str = "") -> None:
    """Raise :class:`UsageError` for a processor that LLVM does not know, on this kind of machine or
    that of ``mtriple``: it would compile for a generic one."""
    import tvm

    triple = mtriple or tvm.get_global_func("target.llvm_get_system_triple")()
    if tvm.get_global_func("target.llvm_is_valid_cpu")(mcpu, triple):
        return
    target = tvm.target.Target({"kind": "llvm", **({"mtriple": mtriple} if mtriple else {})})
    known = [str(name) for name in tvm.get_global_func("target.llvm_get_cpu_archlist")(target)]
    where = f" for {mtriple}" if mtriple else ""
    raise UsageError(f"LLVM knows no processor '{mcpu}'{where}.{nearest(mcpu, known)}")
