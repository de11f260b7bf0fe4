"""Versions of installed packages, and the pinned versions of TVM."""

from __future__ import annotations

import functools
import sys
from importlib import metadata

from tvmtune.errors import TvmtuneError

PINS = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}
"""The versions that work together, as ``pyproject.toml`` requires them."""


@functools.cache  # asked hundreds of times by keys of workloads, and reading takes 0.7 ms
def version_of(*distributions: str) -> str | None:
    """Version of the first of these distributions that is installed, or None."""
    for name in distributions:
        try:
            version: str | None = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if version:
            return version
    return None


def tvm_version() -> str:
    """That of the installed TVM. Raises :class:`TvmtuneError` if its distribution is not found."""
    version = version_of("apache-tvm")
    if version is None:
        raise TvmtuneError(f"apache-tvm is not installed. Run: {pins_remedy()}")
    return version


def versions() -> dict[str, str | None]:
    """Versions of the packages that results depend on; None if not installed. Imports none of them."""
    return {
        "tvmtune": version_of("tvmtune"),
        "apache-tvm": version_of("apache-tvm"),
        "apache-tvm-ffi": version_of("apache-tvm-ffi"),
        "numpy": version_of("numpy"),
        "xgboost": version_of("xgboost", "xgboost-cpu"),
    }


def check_pins() -> None:
    """Refuse versions of TVM other than :data:`PINS`; call it before TVM is imported.

    Raises TvmtuneError with each wrong version and the command that installs the right ones.
    """
    wrong = []
    for name, pinned in PINS.items():
        installed = version_of(name)
        if installed is None:
            wrong.append(f"{name} is not installed (needed: {pinned})")
        elif installed != pinned:
            wrong.append(f"{name} is {installed}, not {pinned}")
    if wrong:
        raise TvmtuneError(
            f"{'; '.join(wrong)}. tvmtune works with exactly these versions: with other versions "
            f"of tvm-ffi, TVM's search crashes (segfault in TuneContext). Run: {pins_remedy()}"
        )


def pins_remedy() -> str:
    """The shell command that installs the pinned versions into this Python."""
    pins = " ".join(f"{name}=={version}" for name, version in PINS.items())
    return f"{sys.executable or 'python3'} -m pip install {pins}"
