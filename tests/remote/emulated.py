"""An emulated 64-bit ARM board: an arm64 Python and TVM's arm64 wheels under QEMU user emulation.

:func:`board` builds it once from Debian packages and wheels, in a cache folder: the user's, or
``TVMTUNE_TEST_CACHE``. It needs ``apt-get`` and ``dpkg-deb``, but no root. It runs real
aarch64 code, so an unsupported instruction raises SIGILL; its times mean nothing.

``python tests/remote/emulated.py`` builds it and prints its path.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from tvmtune.machine.package_versions import PINS

ROOT = Path(__file__).parents[2]
MIRROR = "http://deb.debian.org/debian"
RELEASE, PYTHON = "bookworm", "3.11"
DEBIAN = (
    *(f"{name.format(PYTHON)}:arm64" for name in ("python{}-minimal", "libpython{}-minimal")),
    f"libpython{PYTHON}-stdlib:arm64",
    *("libc6:arm64", "libgcc-s1:arm64", "libstdc++6:arm64", "libssl3:arm64", "libexpat1:arm64"),
    *("zlib1g:arm64", "libffi8:arm64", "libbz2-1.0:arm64", "liblzma5:arm64", "libuuid1:arm64"),
    "libcrypt1:arm64",
)
WHEELS = (
    *(f"{name}=={version}" for name, version in PINS.items()),
    *("click", "ml_dtypes", "numpy", "pluggy", "typing_extensions"),
)
"""The packages that ``tvmtune serve`` needs (docs/farm.md)."""
PLATFORMS = ("2_28", "2_27", "2_24", "2_17")
LEFT_OUT = ("libtvm_compiler.so", "libtvm_runtime_cuda.so")
"""Parts of TVM that a board does not need."""
WITHOUT = (
    ""
    if shutil.which("apt-get") and shutil.which("dpkg-deb")
    else "the emulated board is made of Debian's packages"
)
"""Why there can be no board on this machine; empty if there can."""
needed = pytest.mark.skipif(bool(WITHOUT), reason=WITHOUT)
LIMIT = 600.0
"""Seconds that a step may take on a slow connection."""

_WRAPPER = """#!/bin/sh
# Called by its absolute path, which becomes sys.executable: children are emulated as well.
exec "{home}/qemu-aarch64-static" -cpu "${{TVMTUNE_TEST_ARM_CPU:-cortex-a72}}" -L "{home}/sysroot" \\
    -0 "$0" "{home}/sysroot/usr/bin/python{version}" "$@"
"""
_RUN = """
import sys
import numpy as np
import tvmtune
library = tvmtune.Library.open(sys.argv[1])
np.savez(sys.argv[3], *library.run(dict(np.load(sys.argv[2]))))
"""
CPU = "TVMTUNE_TEST_ARM_CPU"
"""Environment variable with the CPU: cortex-a72 has no dot product instructions, cortex-a76 has."""


def board() -> Path:
    """The absolute path of the board's Python. Built on the first call; safe for concurrent callers."""
    recipe = repr((MIRROR, RELEASE, DEBIAN, WHEELS, PLATFORMS, LEFT_OUT, _WRAPPER))
    cache = _cache()
    home = cache / f"arm64-board-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    python = home / "bin" / "python"
    if python.exists():
        return python
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released by the system, however this ends
        if not python.exists():
            for left_over in cache.glob(f"{home.name}.part-*"):
                shutil.rmtree(left_over)
            part = Path(tempfile.mkdtemp(prefix=f"{home.name}.part-", dir=cache))
            _make(part, home)
            part.rename(home)
    return python


def environment(cpu: str = "cortex-a72") -> dict[str, str]:
    """Environment for the board's Python: its CPU, tvmtune's sources, one thread."""
    sources = [ROOT / "src", ROOT / "plugins" / "cpu", ROOT / "plugins" / "arm"]
    return {
        CPU: cpu,
        "PYTHONPATH": os.pathsep.join(map(str, sources)),
        "TVM_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def outputs(library: Path, inputs: dict[str, np.ndarray], cpu: str) -> list[np.ndarray]:
    """What a library computes there, on an emulated ``cpu``; fails with the board's messages."""
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder) / "inputs.npz", Path(folder) / "outputs.npz"
        np.savez(given, **inputs)
        done = subprocess.run(
            [str(board()), "-c", _RUN, str(library), str(given), str(found)],
            env=os.environ | environment(cpu),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        with np.load(found) as arrays:
            return [arrays[name] for name in arrays.files]


def _cache() -> Path:
    chosen = os.environ.get("TVMTUNE_TEST_CACHE")
    if chosen:
        return Path(chosen).resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tvmtune-tests"


def _make(part: Path, home: Path) -> None:
    """Build the board in ``part``, which will be moved to ``home``."""
    _debian(part)
    site = part / "lib" / f"python{PYTHON}" / "site-packages"
    tags = [f"--platform=manylinux_{each}_aarch64" for each in PLATFORMS]
    _run(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"),
        *("--python-version", PYTHON, "--implementation", "cp", *tags),
        *("--platform=manylinux2014_aarch64", "--target", str(site), *WHEELS),
    )
    for name in LEFT_OUT:
        (site / "tvm" / "lib" / name).unlink()
    (part / "pyvenv.cfg").write_text(f"home = {home}/sysroot/usr/bin\n")
    emulator, sysroot = part / "qemu-aarch64-static", part / "sysroot"
    # Bytecode is the same on all machines, and emulation takes ten times as long.
    compiler = [sys.executable]
    if sys.implementation.name != "cpython" or "{}.{}".format(*sys.version_info) != PYTHON:
        compiler = [str(emulator), "-L", str(sysroot), str(sysroot / f"usr/bin/python{PYTHON}")]
    folders = [str(sysroot / f"usr/lib/python{PYTHON}"), str(site)]
    _run(*compiler, "-m", "compileall", "-q", *folders)
    wrapper = part / "bin" / "python"
    wrapper.parent.mkdir()
    wrapper.write_text(_WRAPPER.format(home=home, version=PYTHON))
    wrapper.chmod(0o755)


def _debian(part: Path) -> None:
    """The emulator for this machine, and the board's Python with its libraries."""
    own = subprocess.run(
        ["dpkg", "--print-architecture"], capture_output=True, text=True, check=True
    ).stdout.strip()
    apt = part / "apt"
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (apt / folder).mkdir(parents=True)
    (apt / "status").touch()
    (apt / "sources.list").write_text(
        f"deb [arch=arm64,{own}] {MIRROR} {RELEASE} main\n"
        if own != "arm64"
        else f"deb {MIRROR} {RELEASE} main\n"
    )
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": f"arm64,{own}",
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
        "Dir::Cache": str(apt / "cache"),
        "Dir::Etc::sourcelist": str(apt / "sources.list"),
        "Dir::Etc::sourceparts": "-",
        "Dir::State": str(apt / "state"),
        "Dir::State::status": str(apt / "status"),
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    _run("apt-get", *words, "-qq", "update")
    _run("apt-get", *words, "-qq", "download", *DEBIAN, f"qemu-user-static:{own}", where=apt)
    for package in apt.glob("*_arm64.deb"):
        if not package.name.startswith("qemu-user-static"):
            _run("dpkg-deb", "-x", str(package), str(part / "sysroot"))
    (emulator,) = apt.glob("qemu-user-static_*.deb")
    _run("dpkg-deb", "-x", str(emulator), str(apt / "qemu"))
    (apt / "qemu/usr/bin/qemu-aarch64-static").rename(part / "qemu-aarch64-static")
    shutil.rmtree(apt)


def _run(*words: str, where: Path | None = None) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        words, cwd=where, env=environment, capture_output=True, text=True, timeout=LIMIT
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(words[:2])} ... failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    print(board())
