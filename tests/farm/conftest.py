"""A farm for each test that asks for one, and candidates for all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from farm import served


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[served.Farm]:
    """What it starts has ended, and left nothing behind, when the test has."""
    folder = tmp_path / "farm"
    folder.mkdir()
    made = served.Farm(folder)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="session")
def candidates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Libraries for this machine by what they do."""
    return served.build(tmp_path_factory.mktemp("candidates"))
