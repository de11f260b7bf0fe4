"""The command line in processes of its own, and what must be true of its complaints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

TRIAL = re.compile(r"^  \S+ \S+ (0x[0-9a-f]+): ", re.MULTILINE)
"""A line of ``tvmtune -v tune`` about one trial; its group is the candidate."""


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
    """The one message at the end of ``stderr``; progress may stand before it, a traceback may not."""
    assert "Traceback" not in stderr
    said = [line for line in stderr.splitlines() if line.startswith("tvmtune: ")]
    assert len(said) == 1, stderr
    assert stderr.rstrip("\n").endswith(said[0]), stderr
    assert "unexpected" not in said[0]
    assert len(said[0]) < 700
    return said[0].removeprefix("tvmtune: ")
