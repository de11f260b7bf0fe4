"""Every command has help that loads nothing heavy."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tvmtune.cli import COMMANDS, group, main

ROOT = Path(__file__).parents[2]
GROUPED = 8
"""Options of its own with which a command needs no groups."""


def every_command() -> list[str]:
    """Every command and subcommand, as words after ``tvmtune``."""
    found = list(COMMANDS)
    for name in group.list_commands(None):
        if name not in COMMANDS:
            nested = group.get_command(None, name)
            found += [name, *(f"{name} {word}" for word in nested.commands)]
    return found


EVERY = every_command()


def command_of(words: str) -> click.Command:
    command: click.Command = group
    for word in words.split():
        assert isinstance(command, click.Group)
        command = command.get_command(None, word)
    return command


def help_of(words: str, columns: int = 80) -> str:
    result = CliRunner().invoke(
        group, [*words.split(), "-h"], prog_name="tvmtune", terminal_width=columns
    )
    assert result.exit_code == 0, result.output
    return result.output


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


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("words", ["", *EVERY])
def test_help_fits_the_terminal(words, columns):
    lines = help_of(words, columns).splitlines()
    assert max(map(len, lines)) <= columns
    # Plain text where it is no terminal.
    assert not any("\x1b" in line for line in lines)


@pytest.mark.parametrize(
    ("columns", "narrowest", "widest"), [(80, 70, 80), (120, 100, 120), (300, 100, 120)]
)
def test_help_uses_the_width_of_the_terminal(columns, narrowest, widest):
    done = subprocess.run(
        [sys.executable, "-m", "tvmtune.cli", "tune", "-h"],
        env=os.environ | {"COLUMNS": str(columns)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert narrowest < max(map(len, done.stdout.splitlines())) <= widest


@pytest.mark.parametrize("words", EVERY)
def test_many_options_come_in_groups_with_one_column(words):
    command = command_of(words)
    options = [p for p in command.params if isinstance(p, click.Option)]
    general = {"verbose", "quiet", "log_level"}
    own = [p for p in options if p.name not in general]
    text = help_of(words)
    if len(own) > GROUPED:
        assert not re.search(r"^Options:$", text, re.MULTILINE)
    assert text.rindex("General:" if "General:" in text else "Options:") < text.rindex("--help")
    # Wherever an option and its text share a line, the text begins in the same column.
    listed = text.partition("\nExamples:")[0].partition("\nCommands:")[0]
    pattern = re.compile(r"  -\S+(?: \S+)*  +(?=\S)")
    starts = {match.end() for match in map(pattern.match, listed.splitlines()) if match}
    assert len(starts) == 1


@pytest.mark.parametrize("words", EVERY)
def test_every_command_has_an_example_that_parses_and_a_page(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = command_of(words)
    text = help_of(words)
    if not isinstance(command, click.Group):
        assert command.examples
    for _, line in command.examples:
        name, *rest = shlex.split(line.partition("|")[0])
        assert name == "tvmtune"
        used: click.Command = group
        while isinstance(used, click.Group):
            used = used.get_command(None, rest.pop(0))
        rest = [word.replace("~/.tvmtune-secret", os.devnull) for word in rest]
        parser = used.make_parser(click.Context(used, info_name=used.name))
        values, extra, _ = parser.parse_args(list(rest))
        assert values or not rest
        assert not extra
        # It can be copied from the help.
        assert " ".join(line.split()) in " ".join(text.replace("\\\n", " ").split())
    pages = command.docs.split(", ")
    assert pages
    for page in pages:
        assert (ROOT / page).is_file(), page


@pytest.mark.parametrize("words", ["", *EVERY])
def test_help_texts_have_one_style(words):
    for param in command_of(words).params:
        if not isinstance(param, click.Option):
            continue
        text = param.help
        assert text, param.name
        assert text[0].isupper(), text
        assert text.endswith((".", "?")), text
        assert not re.search(r"\b[Dd]efault\b", text), text  # click shows it, in one form
        if param.multiple:
            assert "Repeatable." in text, text
        if not param.is_flag and not isinstance(param.type, click.Choice):
            assert param.metavar, param.name


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


@pytest.mark.sweep
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
