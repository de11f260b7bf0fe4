"""Temporary folders that are removed even if their process was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

WORK = "tvmtune-work-"
"""Prefix of what a command needs while it runs."""
_YOUNG = 60.0
"""Seconds. A younger folder may not be locked yet."""


@contextlib.contextmanager
def folder(prefix: str) -> Iterator[Path]:
    """A new folder in the temporary directory, removed at the end.

    Its process locks it. Those with the same prefix that nobody locks, because their process was
    killed, are removed first. A lock holds across PID namespaces: containers may share the directory.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            status = left.lstat()
            if status.st_uid == os.getuid() and abs(time.time() - status.st_mtime) > _YOUNG:
                with _locked(left):
                    shutil.rmtree(left, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        with _locked(made):
            yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock a folder; raises OSError if another process holds the lock."""
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)
