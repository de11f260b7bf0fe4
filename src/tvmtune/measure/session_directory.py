"""The temporary directory of a tuning session, and removal of those that killed sessions left."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path


def create() -> Path:
    """A new directory, named after this process; first removes those of this user's dead processes."""
    _remove_abandoned()
    return Path(tempfile.mkdtemp(prefix=f"tvmtune-{os.getpid()}-"))


def _remove_abandoned() -> None:
    for path in Path(tempfile.gettempdir()).glob("tvmtune-[0-9]*-*"):
        owner = path.name.split("-")[1]
        if not owner.isdigit() or Path(f"/proc/{owner}").exists():
            continue
        with contextlib.suppress(OSError):
            if path.lstat().st_uid != os.getuid():
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
