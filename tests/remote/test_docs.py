"""docs/farm.md matches the commands and the packages of the emulated board."""

from __future__ import annotations

import importlib
import re
import shlex

from remote import emulated
from tvmtune.cli import COMMANDS

TEXT = (emulated.ROOT / "docs" / "farm.md").read_text()


def test_documented_commands_and_options_exist() -> None:
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


def test_the_documented_install_line_matches_the_emulated_board() -> None:
    found = re.search(r"pip install (apache-tvm==.*)", TEXT)
    assert found
    documented = set(found.group(1).split())
    dependencies = {"ml_dtypes", "numpy", "typing_extensions"}  # of apache-tvm
    assert documented | dependencies == set(emulated.WHEELS)
