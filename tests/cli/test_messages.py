"""``-q``, ``-v`` and ``--log-level``: before and after the command, in every command."""

from __future__ import annotations

import onnx
import pytest

from models import tiny_cnn
from tvmtune.cli import COMMANDS, group, messages


@pytest.fixture
def run(tmp_path, monkeypatch, command_line):
    onnx.save(tiny_cnn(), tmp_path / "tiny.onnx")
    monkeypatch.chdir(tmp_path)
    return command_line


@pytest.mark.parametrize("name", [*COMMANDS, "vta", "vta layers"])
def test_every_command_has_the_options(name):
    command = group
    for word in name.split():
        command = command.get_command(None, word)
    options = {word for param in command.params for word in param.opts}
    assert {"-v", "--verbose", "-q", "--quiet", "--log-level"} <= options


@pytest.mark.parametrize(
    ("words", "level"),
    [
        ([], messages.INFO),
        (["-q"], messages.WARNING),
        (["--log-level", "warning"], messages.WARNING),
        (["--log-level", "error"], messages.ERROR),
        (["-v"], messages.DEBUG),
        (["--log-level", "debug"], messages.DEBUG),
    ],
)
def test_the_level_is_set_before_and_after_the_command(run, monkeypatch, words, level):
    seen = []
    command = group.get_command(None, "plugins")
    shown = lambda **_: seen.append(  # noqa: E731
        next(each for each in range(4) if messages.shown(each))
    )
    monkeypatch.setattr(command, "callback", shown)
    assert run(*words, "plugins")[0] == 0
    assert run("plugins", *words)[0] == 0
    assert seen == [level, level]


@pytest.mark.slow
def test_quiet_leaves_results_and_errors(run):
    code, out, err = run("compile", "tiny.onnx", "-o", "lib.so", "-q")
    assert (code, err) == (0, "")
    assert out.startswith("lib.so: ")
    code, out, err = run("-q", "compile", "absent.onnx")
    assert (code, out) == (2, "")
    assert err.startswith("tvmtune: absent.onnx does not exist")


def test_quiet_leaves_warnings_and_the_level_error_drops_them(run, tmp_path):
    listening = ("tracker", "--host", "192.0.2.1", "--insecure")  # no address of this machine
    assert "warning: at 192.0.2.1, everyone who can reach" in run("-q", *listening)[2]
    _, _, err = run("--log-level", "error", *listening)
    assert err.startswith("tvmtune: cannot listen at 192.0.2.1")


def test_an_environment_variable_sets_the_level(run, monkeypatch):
    monkeypatch.setenv("TVMTUNE_QUIET", "1")
    assert run("tasks", "tiny.onnx")[2] == ""
    monkeypatch.setenv("TVMTUNE_TASKS_LOG_LEVEL", "info")
    assert run("tasks", "tiny.onnx")[0] == 0


@pytest.mark.parametrize("words", [["-q", "-v"], ["-v", "--log-level", "error"]])
def test_two_levels_contradict_each_other(run, words):
    code, _, err = run("plugins", *words)
    assert code == 2
    assert "-v, -q and --log-level contradict each other" in err


def test_an_unknown_level_is_wrong_usage(run):
    code, _, err = run("plugins", "--log-level", "warnin")
    assert code == 2
    assert "--log-level 'warnin' is not known. Did you mean warning?" in err
