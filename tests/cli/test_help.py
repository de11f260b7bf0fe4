"""Every command has help that loads nothing heavy."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from tvmtune.cli import COMMANDS, group, main


def test_the_group_lists_every_command_with_its_help():
    result = CliRunner().invoke(group, ["--help"])
    assert result.exit_code == 0
    for name, text in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(text.split()[0])}", result.output, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name):
    result = CliRunner().invoke(group, [name, "--help"], prog_name="tvmtune")
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: tvmtune {name}")
    assert "Traceback" not in result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_starts_with_its_line_in_the_list(name):
    assert group.get_command(None, name).help.split("\n\n")[0] == COMMANDS[name]


def test_the_help_of_backends_commands_is_not_truncated():
    result = CliRunner().invoke(group, ["vta", "--help"])
    assert result.exit_code == 0
    assert "..." not in result.output.split("Commands:")[1]


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
    heavy = {"tvm", "tvm_ffi", "numpy", "onnx", "rich", "xgboost", "scipy", "pluggy"}
    assert loaded & heavy == set()


def test_a_mistyped_command_suggests_the_nearest():
    result = CliRunner().invoke(group, ["tunee"])
    assert result.exit_code == 2
    assert "'tunee' is not a command. Did you mean tune" in result.output


def test_verbose_is_accepted_before_and_after_the_command(capsys):
    for words in (["-v", "tasks"], ["tasks", "-v"]):
        with pytest.raises(SystemExit):
            main([*words, "--network", "nowhere"])
        assert "Traceback" in capsys.readouterr().err


def test_only_tune_prints_trials_when_verbose():
    for name in COMMANDS:
        (verbose,) = (p for p in group.get_command(None, name).params if p.name == "verbose")
        assert ("trial" in verbose.help) == (name == "tune")


@pytest.mark.parametrize("words", [["vta", "-v", "layers"], ["vta", "layers", "-v"]])
def test_commands_of_backends_accept_verbose(words, capsys):
    with pytest.raises(SystemExit):
        main([*words, "nowhere"])
    assert "Traceback" in capsys.readouterr().err


def test_every_option_has_an_environment_variable_named_after_it():
    for name in COMMANDS:
        command = group.get_command(None, name)
        for param in command.params:
            long = next((o for o in param.opts if o.startswith("--")), None)
            if long and long not in ("--help", "--verbose"):
                word = long.removeprefix("--").replace("-", "_").upper()
                assert param.envvar == f"TVMTUNE_{name.upper()}_{word}"


@pytest.mark.parametrize(
    ("name", "seconds"), [("tune", 600), ("bench", 60), ("run", 60), ("devices", 10)]
)
def test_every_wait_is_a_duration(name, seconds):
    command = group.get_command(None, name)
    (wait,) = (param for param in command.params if param.name == "wait")
    ctx = click.Context(command)
    assert wait.metavar == "TIME"
    assert wait.process_value(ctx, wait.default) == seconds
    for text, value in [("5m", 300), ("90s", 90), ("600", 600)]:
        assert wait.process_value(ctx, text) == value


def test_an_environment_variable_sets_an_option(monkeypatch, capsys):
    monkeypatch.setenv("TVMTUNE_TASKS_NETWORK", "nowhere")
    with pytest.raises(SystemExit):
        main(["tasks"])
    assert "'nowhere' is neither" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("tvmtune ta", ["tasks"]),
        ("tvmtune tune --network mobilenet-v2", ["mobilenet-v2"]),
        ("tvmtune tune --network mobilenet-v3-", ["mobilenet-v3-large", "mobilenet-v3-small"]),
        ("tvmtune compile squeeze", ["squeezenet_v1.0", "squeezenet_v1.1"]),
        ("tvmtune tune --target c", ["cpu", "cuda"]),
        ("tvmtune tune --tuner x", ["xgb", "xgb-knob"]),
        ("tvmtune tune --scheduler r", ["round-robin"]),
        ("tvmtune bench lib.so --vs openvino,o", ["openvino,onnxruntime"]),
    ],
)
def test_the_shell_completes_commands_options_and_names(words, offered):
    done = subprocess.run(
        [sys.executable, "-m", "tvmtune.cli"],
        env=os.environ
        | {
            "_TVMTUNE_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    plain = [line.partition(",")[2] for line in done.stdout.split() if line.startswith("plain,")]
    assert plain == offered
