"""For every test."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tvmtune import torchless

if TYPE_CHECKING:
    from farm.served import Farm

# Some tests limit the size of files in a process of their own. Python would leave bytecode there that
# is cut short, and every later import of that module would fail ("marshal data too short").
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"

torchless.install()  # as in tvmtune's own processes


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes minutes begins first: begun last, it would run on alone while other workers idle.

    Then whole modules, mixed: neighbours in a folder all compute, or all wait for boards and deadlines,
    and two of the same kind side by side leave a processor idle, or have three share it.
    """

    def order(item: pytest.Item) -> tuple[bool, int]:
        return item.get_closest_marker("long") is None, zlib.crc32(item.path.name.encode())

    items.sort(key=order)


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    """What it starts has ended, and left nothing behind, when the test has."""
    from farm.served import Farm

    folder = tmp_path / "farm"
    folder.mkdir()
    made = Farm(folder)
    try:
        yield made
    finally:
        made.close()
