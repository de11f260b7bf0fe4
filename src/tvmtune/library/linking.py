"""Runs the linker, and says why it failed."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tvmtune.errors import TvmtuneError


def link(command: Sequence[str], path: Path, inherited: Sequence[int] = ()) -> None:
    """Run a linker's command that makes ``path``; it inherits these file descriptors.

    Raises :class:`TvmtuneError` with the linker's complaint, or because the disk is full.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", pass_fds=inherited
        )
    except OSError as exc:
        raise TvmtuneError(f"the linker {command[0]} cannot be run: {exc.strerror}") from exc
    if done.returncode != 0:
        complaint = (done.stderr.strip() or done.stdout.strip()).splitlines()
        why = complaint[-1] if complaint else f"exit status {done.returncode}"
        if _is_full(path.parent, command):
            why = os.strerror(errno.ENOSPC)  # lld maps its output into memory, and crashes here
        raise TvmtuneError(f"cannot write {path}: {why}")


def _is_full(folder: Path, command: Sequence[str]) -> bool:
    """Whether the folder's disk has no room for the object files in a linker's command."""
    with contextlib.suppress(OSError):
        inputs = [path for path in map(Path, command) if path.suffix == ".o" and path.exists()]
        objects = sum(path.stat().st_size for path in inputs)
        return shutil.disk_usage(folder).free < objects
    return False
