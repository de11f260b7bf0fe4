"""Help is there for everything, and costs nothing that it does not need."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from tvmtune.cli import COMMANDS, group, main


def test_the_group_lists_every_command_with_its_help():
    result = CliRunner().invoke(group, ["--help"])
    assert result.exit_code == 0
    for name, text in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(text.split()[0])}", result.output, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name):
    result = CliRunner().invoke(group, [name, "--help"], prog_name="tvmtune")
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: tvmtune {name}")
    assert "Traceback" not in result.output


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["tune", "--help"]])
def test_help_loads_nothing_heavy(args):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "tvmtune.cli", *args],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    loaded = {line.split("|")[-1].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "click" in loaded
    heavy = {"tvm", "tvm_ffi", "numpy", "onnx", "rich", "xgboost", "pebble", "scipy", "pluggy"}
    assert loaded & heavy == set()


def test_a_mistyped_command_is_answered_with_the_nearest():
    result = CliRunner().invoke(group, ["tunee"])
    assert result.exit_code == 2
    assert "'tunee' is not a command. Did you mean tune" in result.output


def test_verbose_may_stand_before_and_behind_the_command(capsys):
    for words in (["-v", "tasks"], ["tasks", "-v"]):
        with pytest.raises(SystemExit):
            main([*words, "--network", "nowhere"])
        assert "Traceback" in capsys.readouterr().err
