from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from report import sample
from tvmtune.records.log import Log, read_log

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return sample.write(tmp_path / "log.json")


@pytest.fixture
def log(path: Path) -> Log:
    return read_log(path)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Headless Chromium, as Debian packages it."""
    api = pytest.importorskip("playwright.sync_api")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium here")
    with api.sync_playwright() as playwright:
        # CI runs as root, in containers without the privileges that the sandbox needs.
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()
