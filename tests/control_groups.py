"""Control groups with little memory. Making one needs root."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path("/sys/fs/cgroup")
_LIMITS = (
    (_ROOT / "memory", ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")),
    (_ROOT, ("memory.max", "memory.swap.max")),
)
"""Where groups are made, of version 1 and of version 2, and their limits: of memory, and of swap."""


@contextlib.contextmanager
def limited(size: int) -> Iterator[Path]:
    """A group whose processes get ``size`` bytes of memory together, or skips the test."""
    for parent, (limit, swap) in _LIMITS:
        group = parent / f"tvmtune-test-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if not (group / limit).exists():
                continue
            (group / limit).write_text(str(size))
            with contextlib.suppress(OSError):  # the kernel may not account swap
                (group / swap).write_text(str(size) if "memsw" in swap else "0")
            yield group
            return
        finally:
            with contextlib.suppress(OSError):
                group.rmdir()
    pytest.skip("no control group with a limit of memory can be made here")
