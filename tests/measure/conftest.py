"""Fixtures: boards to measure on."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote import served


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[served.Farm]:
    """A device farm whose processes end with the test and leave no files; only processes that were
    killed may leave some."""
    folder = tmp_path / "farm"
    folder.mkdir()
    made = served.Farm(folder)
    try:
        yield made
    finally:
        codes = [
            r.end() if r.process.poll() is None else r.process.returncode for r in made._running
        ]
        if -signal.SIGKILL in codes:
            for path in folder.glob("tvmtune-*"):
                shutil.rmtree(path)
        made.close()


@pytest.fixture(scope="session")
def candidates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Libraries for this machine, by behavior."""
    return served.build(tmp_path_factory.mktemp("candidates"))
