"""docs/farm.md is held to the commands and to what a board has been seen to need."""

from __future__ import annotations

import importlib
import re
import shlex

from farm import emulated
from tvmtune.cli import COMMANDS

TEXT = (emulated.ROOT / "docs" / "farm.md").read_text()


def test_every_command_and_option_exists() -> None:
    lines = re.findall(
        r"^(?:    |ExecStart=)?\S*\btvmtune ((?!board).*?)(?:  +#.*)?$", TEXT, re.MULTILINE
    )
    words = [shlex.split(line) for line in lines if line.split()[0] in COMMANDS]
    assert {name for name, *_ in words} >= {"tracker", "serve", "devices", "tune", "bench"}
    for name, *rest in words:
        options = {
            o for p in importlib.import_module(f"tvmtune.cli.{name}").command.params for o in p.opts
        }
        assert {word for word in rest if word.startswith("--")} <= options, (name, rest)


def test_the_install_line_is_what_the_emulated_board_has() -> None:
    found = re.search(r"pip install (apache-tvm==.*)", TEXT)
    assert found
    named = set(found.group(1).split())
    come_along = {"ml_dtypes", "numpy", "typing_extensions"}  # apache-tvm asks for them
    assert named | come_along == set(emulated.WHEELS)
