"""Small file systems for tests of disks that are full, or take nothing."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_LIMIT = 30.0
"""Seconds in which whoever still has something open there has to be done."""


@contextlib.contextmanager
def mounted(disk: Path, options: str) -> Iterator[None]:
    """A tmpfs with these options at ``disk``, which is made; the test is skipped where none can be."""
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        yield
    finally:
        end = time.monotonic() + _LIMIT
        while subprocess.run(["umount", str(disk)], capture_output=True).returncode:
            gc.collect()  # a file may be open that only a cycle of garbage knows
            assert time.monotonic() < end, f"somebody keeps a file of {disk} open"
            time.sleep(0.1)
