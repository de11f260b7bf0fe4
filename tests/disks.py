"""Full and read-only disks: small file systems, and processes whose files are limited in size."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

NO_BYTECODE = {"PYTHONDONTWRITEBYTECODE": "1"}
"""The environment of a process with a limit to the size of its files: Python would leave bytecode there
that ends at the limit, and every later import of that module would fail ("marshal data too short")."""

_LIMIT = 30.0
"""Seconds within which files that are still open there must be closed."""


@contextlib.contextmanager
def mounted(disk: Path, options: str) -> Iterator[None]:
    """Mount a tmpfs with these options at the new folder ``disk``, or skip the test."""
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        yield
    finally:
        end = time.monotonic() + _LIMIT
        while subprocess.run(["umount", str(disk)], capture_output=True).returncode:
            gc.collect()  # a garbage cycle may hold an open file
            assert time.monotonic() < end, f"somebody keeps a file of {disk} open"
            time.sleep(0.1)
