"""Messages that docs/troubleshooting.md explains are messages of the code."""

from __future__ import annotations

import ast
import re

import pytest

from docs.pages import ROOT

TEXT = (ROOT / "docs/troubleshooting.md").read_text()


def messages() -> list[str]:
    """The messages in the first columns; ``...`` stands for what varies."""
    cells = [line.split(" | ")[0] for line in TEXT.splitlines() if line.startswith("| `")]
    return re.findall(r"^\| `([^`]+)`", "\n".join(cells), re.MULTILINE)


@pytest.fixture(scope="module")
def literals() -> str:
    """Every string of the code, with line breaks between and a NUL for each value inside."""
    found = []
    for folder in ("src/tvmtune", "plugins"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = (p.value if isinstance(p, ast.Constant) else "\0" for p in node.values)
                    found.append("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return "\n".join(text.replace("\n", " ") for text in found)


def test_the_page_has_the_messages_that_users_meet():
    assert len(messages()) > 45


@pytest.mark.parametrize("message", messages())
def test_each_message_is_in_the_code(message, literals):
    pattern = ".*".join(re.escape(part) for part in message.split("..."))
    assert re.search(pattern, literals), "the message has changed: change the page"
