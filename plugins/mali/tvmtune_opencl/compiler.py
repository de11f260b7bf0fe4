"""Compiles the library against the headers of TVM's wheel."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tvmtune.atomic_write import cannot_write, replacing
from tvmtune.errors import TvmtuneError
from tvmtune.machine import package_versions
from tvmtune_opencl import FLAGS, SOURCES, is_complete

COMPILERS = ("g++", "clang++", "c++")
DEADLINE = 600.0
"""Deadline in seconds for the compiler, which takes 6 on a PC."""


def build(library: Path, *, force: bool = False) -> Path:
    """Compile to ``library`` unless it exists, or always with ``force``.

    The file appears complete or not at all. One process compiles while others wait for it.
    """
    if is_complete(library) and not force:
        return library
    package_versions.check_pins()
    command = [*find_compiler(), *_arguments()]
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise _not_writable(library, exc) from exc
    with _locked(library):
        if is_complete(library) and not force:
            return library
        # Leftovers of killed builds; the lock excludes running ones.
        for leftover in library.parent.glob(f".{library.name}.*"):
            shutil.rmtree(leftover, ignore_errors=True)
        with replacing(library) as temporary:
            _compile([*command, "-o", str(temporary)])
    return library


def find_compiler() -> list[str]:
    """The C++ compiler's command: $CXX, or the first of :data:`COMPILERS` that is installed.

    Raises TvmtuneError if there is none.
    """
    chosen = shlex.split(os.environ.get("CXX", ""))
    if chosen:
        if shutil.which(chosen[0]) is None:
            raise TvmtuneError(f"CXX names '{chosen[0]}', which cannot be run")
        return chosen
    for name in COMPILERS:
        if shutil.which(name):
            return [name]
    raise TvmtuneError(
        f"no C++ compiler found (tried {', '.join(COMPILERS)}); the OpenCL add-on has to be compiled "
        "once. On Debian or Ubuntu: sudo apt-get install g++. Or name a compiler in CXX."
    )


def _arguments() -> list[str]:
    arguments = list(FLAGS)
    for package in ("tvm", "tvm_ffi"):
        spec = importlib.util.find_spec(package)  # importing it takes seconds
        for folder in (spec and spec.submodule_search_locations) or ():
            arguments.append(f"-I{Path(folder) / 'include'}")
    return [*arguments, str(SOURCES / "runtime.cc"), "-ldl", "-lpthread"]


def _compile(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=DEADLINE,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as exc:
        raise TvmtuneError(
            f"{command[0]} did not compile the OpenCL add-on within {DEADLINE:g} s"
        ) from exc
    except OSError as exc:
        raise TvmtuneError(f"the compiler {command[0]} cannot be run: {exc.strerror}") from exc
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower() or "No space" in line]
        message = [*errors[:1], *lines[-1:], f"exit status {done.returncode}"][0]
        raise TvmtuneError(f"the OpenCL add-on cannot be compiled: {command[0]}: {message[:300]}")


@contextlib.contextmanager
def _locked(library: Path) -> Iterator[None]:
    """Hold the directory's lock, which the kernel releases if its holder dies."""
    try:
        file = (library.parent / ".lock").open("a")
    except OSError as exc:
        raise _not_writable(library, exc) from exc
    with file:
        # Some network file systems have no locks: then two may compile, and the later one wins.
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _not_writable(library: Path, exc: OSError) -> TvmtuneError:
    return TvmtuneError(
        f"{cannot_write(library, exc)}. XDG_CACHE_HOME names another directory for the OpenCL add-on."
    )
