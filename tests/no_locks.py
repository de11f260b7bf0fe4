"""File systems without locks."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ERRORS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Of NFS without its lock service, of some FUSE, and of Lustre without ``flock``."""

_SOURCE = """
#include <errno.h>
int flock(int fd, int operation) { errno = ENOLCK; return -1; }
"""


def patch(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Have all locks of this process fail with this error."""

    def flock(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)


def preloaded(folder: Path) -> dict[str, str]:
    """Environment variables of processes whose C library has no locks; skips without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler: apt-get install gcc")
    library = folder / "no_locks.so"
    words = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(words, input=_SOURCE, text=True, check=True)
    return {"LD_PRELOAD": str(library)}
