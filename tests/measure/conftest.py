"""Boards to measure on, and a limit to the patience of tests that wait."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from farm import served


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[served.Farm]:
    """What it starts has ended, and left nothing behind, when the test has; only what was killed by
    force could not tidy up."""
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
    """Libraries for this machine by what they do."""
    return served.build(tmp_path_factory.mktemp("candidates"))


@pytest.fixture
def within(request: pytest.FixtureRequest) -> Iterator[Callable[[int], Any]]:
    """``within(60)``: the test fails if it is not done 60 seconds from now, whatever it waits for."""

    def late(*_: object) -> None:
        pytest.fail("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    try:
        yield signal.alarm
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
