"""Fixtures for PyTorch as a runtime to compare with."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def inductor_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all workers of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "inductor"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def inductor_cache(inductor_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inductor's cache on disk is that of the session: compiling its C++ headers takes longer than
    compiling a kernel. What is in memory ends with the test."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(inductor_folder))
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].compiler.reset()
