"""Candidate libraries for tests of boards."""

from __future__ import annotations

from pathlib import Path

import pytest

from remote import served


@pytest.fixture(scope="session")
def candidates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Libraries for this machine, by behavior."""
    return served.build(tmp_path_factory.mktemp("candidates"))
