"""Fixtures: boards to measure on, and time limits for tests."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


@pytest.fixture
def within(request: pytest.FixtureRequest) -> Iterator[Callable[[int], Any]]:
    """``within(60)``: the test fails if it has not finished in 60 seconds, whatever it waits for."""

    def late(*_: object) -> None:
        pytest.fail("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    try:
        yield signal.alarm
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
