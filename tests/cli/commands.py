"""Run the command line in separate processes, and check its error messages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

TRIAL = re.compile(r"^  \S+ \S+ (0x[0-9a-f]+): ", re.MULTILINE)
"""Matches a trial's line of ``tvmtune -v tune``; the group is the candidate."""


def command(*args: object) -> list[str]:
    return [sys.executable, "-m", "tvmtune.cli", *map(str, args)]


def tvmtune(
    *args: object, cwd: Path, env: dict[str, str] | None = None, **more: Any
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*args),
        cwd=cwd,
        env=os.environ | (env or {}),
        capture_output=True,
        text=True,
        **{"timeout": 300, **more},
    )


def complaint(stderr: str) -> str:
    """The one error message at the end of ``stderr``, which may follow progress but no traceback."""
    assert "Traceback" not in stderr
    messages = [line for line in stderr.splitlines() if line.startswith("tvmtune: ")]
    assert len(messages) == 1, stderr
    assert stderr.rstrip("\n").endswith(messages[0]), stderr
    assert "unexpected" not in messages[0]
    assert len(messages[0]) < 700
    return messages[0].removeprefix("tvmtune: ")
