"""For every test."""

import os

import pytest

# Some tests limit the size of files in a process of their own. Python would leave bytecode there that
# is cut short, and every later import of that module would fail ("marshal data too short").
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes minutes begins first: begun last, it would run on alone while other workers idle."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
