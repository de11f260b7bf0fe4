"""What a process of the pool prints, for the message in case it dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import weakref
from pathlib import Path

_TAIL = 1 << 16
"""Bytes that are read."""
_LINE = 300
"""Characters of a line that are kept."""


class Output:
    """A file that is gone once it is closed: in memory, because a full disk would lose the message that
    says so, or in ``directory`` where the system cannot do that. Raises OSError if there is none."""

    def __init__(self, directory: Path | None = None) -> None:
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("tvmtune-worker-output")
        else:
            with tempfile.TemporaryFile(dir=directory) as file:
                descriptor = os.dup(file.fileno())
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_RDWR | os.O_APPEND)
        self.descriptor = descriptor
        weakref.finalize(self, os.close, descriptor).atexit = False

    def clear(self) -> None:
        os.ftruncate(self.descriptor, 0)

    def after(self, text: str) -> str:
        """``text``, followed by the last line."""
        with contextlib.suppress(OSError):
            size = os.fstat(self.descriptor).st_size
            tail = os.pread(self.descriptor, _TAIL, max(0, size - _TAIL))
            if lines := tail.decode(errors="replace").strip().splitlines():
                return f"{text}: {lines[-1][:_LINE]}"
        return text
