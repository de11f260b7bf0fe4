"""Find a linker for this machine, or for the LLVM triple of another."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys

from tvmtune.errors import TvmtuneError
from tvmtune.machine.triples import processor, runs_here

_VARIABLES = ("TVMTUNE_LINKER", "TVM_NDK_CC")
_DEBIAN_PREFIXES = {"arm": "arm-linux-gnueabihf"}
"""Prefixes of Debian's cross tools that are not PROCESSOR-linux-gnu."""


def find_linker(mtriple: str = "") -> list[str]:
    """Command prefix of a linker that takes ``-shared -o LIBRARY OBJECT...``, for the LLVM triple of
    another machine or, if that is empty, for this one.

    ``TVMTUNE_LINKER`` (a command with optional arguments) comes first; for other machines
    ``TVM_NDK_CC``, the compiler of Android's NDK or another cross compiler, comes second. Bare linkers
    come before compiler drivers, which take three times as long and add nothing that TVM's objects
    need. Raises TvmtuneError if there is none.
    """
    android = "android" in mtriple
    variables = ["TVMTUNE_LINKER"] if runs_here(mtriple) and not android else [*_VARIABLES]
    for variable in variables:
        if command := shlex.split(os.environ.get(variable, "")):
            if variable == "TVM_NDK_CC" and "android" in command[0] and not android:
                continue  # its libraries load on Android only
            if shutil.which(command[0]) is None:
                raise TvmtuneError(f"{variable} names '{command[0]}', which cannot be run")
            return command
    if android:
        raise TvmtuneError(
            "libraries for Android are linked by the C++ compiler of its NDK: name it in TVM_NDK_CC, "
            "e.g. TVM_NDK_CC=$NDK/toolchains/llvm/prebuilt/linux-x86_64/bin/"
            "aarch64-linux-android24-clang++"
        )
    drivers = ["gcc", "cc", "clang"]
    names = drivers if sys.platform == "darwin" else ["ld.lld", "ld", *drivers]
    package = "binutils"
    if not runs_here(mtriple):
        machine = processor(mtriple)
        prefix = _DEBIAN_PREFIXES.get(machine, f"{machine}-linux-gnu")
        names = ["ld.lld", f"{prefix}-ld", f"{prefix}-gcc"]
        package = "lld"
    for name in names:
        path = shutil.which(name)
        if path is not None:
            # A cross compiler may be installed without its start files and libraries.
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
