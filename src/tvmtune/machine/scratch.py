"""Temporary folders that are removed even if their process was killed."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tvmtune.machine import file_lock

WORK = "tvmtune-work-"
"""Prefix of what a command needs while it runs."""
_UNLOCKED = "tvmtune-unlocked-"
"""Of the names of folders that could not be locked. No prefix, so nobody removes them."""
_YOUNG = 60.0
"""Seconds. A younger folder may not be locked yet."""


@contextlib.contextmanager
def folder(prefix: str) -> Iterator[Path]:
    """A new folder in the temporary directory, removed at the end.

    Its process locks it. Those with the same prefix that nobody locks, because their process was
    killed, are removed first. A lock holds across PID namespaces: containers may share the directory.
    Where nothing can be locked, what a killed process leaves stays.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            status = left.lstat()
            if status.st_uid == os.getuid() and abs(time.time() - status.st_mtime) > _YOUNG:
                with _locked(left):
                    shutil.rmtree(left, ignore_errors=True)
    with contextlib.ExitStack() as stack:
        made = _new(prefix, stack)
        try:
            stack.enter_context(_locked(made))
        except file_lock.CannotLock:
            # Whoever shares the directory and has locks would take it for a killed process's.
            made.rmdir()
            made = _new(_UNLOCKED, stack)
        yield made


def _new(prefix: str, stack: contextlib.ExitStack) -> Path:
    """A new folder, which ``stack`` removes."""
    made = Path(tempfile.mkdtemp(prefix=prefix))
    stack.callback(shutil.rmtree, made, ignore_errors=True)
    return made


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock a folder; raises OSError if another process holds the lock, or if it cannot be locked."""
    handle = os.open(path, os.O_RDONLY)
    try:
        if not file_lock.take(handle):
            raise BlockingIOError(errno.EWOULDBLOCK, "another process holds the lock", str(path))
        yield
    finally:
        os.close(handle)
