"""One tiny library for all tests here; each test that wants to change it gets a copy."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from deploy.building import make_library, spoiled
from models import tiny_cnn
from tvmtune.deploy import metadata
from tvmtune.deploy.library import Library
from tvmtune.threads import allowed_cpus

# A pool that another test's kernel starts is of this size, too; it could not grow later.
os.environ.setdefault("TVM_NUM_THREADS", str(min(2, len(allowed_cpus()))))


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library of ``tiny_cnn``, with a check; its network is ``model.onnx`` beside it."""
    return make_library(tiny_cnn(), tmp_path_factory.mktemp("made"), threads=default_threads())


@pytest.fixture(scope="session")
def opened(made: Path) -> Library:
    return Library.open(made)


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(made, tmp_path / "copy.so"))


@pytest.fixture(scope="session")
def wrong(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with one wrong weight that claims to be ``made``."""
    path = make_library(spoiled(tiny_cnn()), tmp_path_factory.mktemp("wrong"), check=False)
    metadata.append(path, metadata.read(made))
    return path


def default_threads() -> int:
    return min(2, len(allowed_cpus()))
