"""``tvmtune.toml``: precedence, where values come from, and errors that name file and key."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.commands import complaint
from tvmtune.cli import group, main, project_file
from tvmtune.errors import UsageError

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Writes a project file and runs a command in a folder below it; exit status, stdout, stderr."""
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)

    def invoke(content: str, *args: str) -> tuple[int, str, str]:
        (tmp_path / "tvmtune.toml").write_text(content)
        with pytest.raises(SystemExit) as ended:
            main(list(args))
        captured = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, captured.out, captured.err

    return invoke


@pytest.fixture
def values(monkeypatch: pytest.MonkeyPatch, run: Run) -> Callable[..., dict[str, object]]:
    """The values that a command gets, without running it."""

    def collect(content: str, name: str, *args: str) -> dict[str, object]:
        got: dict[str, object] = {}
        command = group.get_command(None, name)
        assert command is not None
        monkeypatch.setattr(command, "callback", lambda **options: got.update(options))
        code, _, err = run(content, name, *args)
        assert code == 0, err
        return got

    return collect


def test_the_file_sets_options_in_folders_below_it(values):
    got = values(
        'trials = 500\n[tune]\ntime-budget = "1h30m"\ntask_patience = 8\nno-compile = true\n'
        "wait = 30\nmax-failure-rate = 1\n",
        "tune",
        "net",
    )
    assert got["trials"] == 500
    assert got["time_budget"] == 5400
    assert got["task_patience"] == 8
    assert got["no_compile"] is True
    assert got["wait"] == 30
    assert got["max_failure_rate"] == 1


def test_lists_and_tables_set_options_that_may_be_repeated(values):
    got = values(
        'target-attr = ["threads=1"]\n[tune.tuner-option]\npopulation = 64\n', "tune", "net"
    )
    assert tuple(got["target_attr"]) == ("threads=1",)
    assert tuple(got["tuner_option"]) == ("population=64",)


def test_a_command_ignores_tables_of_others_and_top_keys_that_others_have(values):
    got = values("trials = 5\nrepeat = 7\n[tune]\nrepeat = 3\n", "bench", "lib.so")
    assert got["repeat"] == 7
    assert "trials" not in got


def test_the_table_of_a_command_comes_before_the_top(values):
    assert values("repeat = 7\n[tune]\nrepeat = 3\n", "tune", "net")["repeat"] == 3


def test_environment_and_command_line_come_first(values, monkeypatch):
    content = "[tune]\ntrials = 1\nrepeat = 1\nnumber = 4\n"
    monkeypatch.setenv("TVMTUNE_TUNE_TRIALS", "2")
    monkeypatch.setenv("TVMTUNE_TUNE_REPEAT", "2")
    got = values(content, "tune", "net", "--repeat", "3")
    assert (got["trials"], got["repeat"], got["number"]) == (2, 3, 4)


def test_a_network_on_the_command_line_comes_before_that_of_the_file(run, monkeypatch):
    code, _, err = run('network = "nowhere"\n', "tasks", "elsewhere")
    assert code == 2
    assert "'elsewhere' is neither" in err
    monkeypatch.setenv("TVMTUNE_TASKS_NETWORK", "nowhere")
    assert "'elsewhere' is neither" in run("", "tasks", "elsewhere")[2]


def test_paths_are_those_beside_the_file(values, tmp_path):
    (tmp_path / "net.onnx").touch()
    got = values('network = "net.onnx"\n[tune]\nlog = "logs/x.json"\n', "tune")
    assert Path(str(got["log"])).resolve() == tmp_path / "logs" / "x.json"
    assert Path(str(got["network"])).resolve() == tmp_path / "net.onnx"
    assert values('network = "resnet-18"\n', "tune")["network"] == "resnet-18"


def test_the_nearest_file_counts(values, tmp_path):
    (tmp_path / "a" / "tvmtune.toml").write_text("trials = 3\n")
    assert values("trials = 5\n", "tune", "net")["trials"] == 3


def test_another_file_and_no_file(run, tmp_path):
    other = tmp_path / "other.toml"
    other.write_text("trials = 0\n")
    asked = ("tune", "resnet-18", "--dry-run")
    code, _, err = run("trials = -1\n", "--config", str(other), *asked)
    assert code == 2
    assert f"--trials must be at least 1, not 0 (--trials: from {other})" in complaint(err)
    assert run("trials = -1\n", "--no-config", "plugins")[0] == 0
    code, _, err = run("", "--no-config", "--config", str(other), "plugins")
    assert (code, "contradict" in err) == (2, True)
    code, _, err = run("", "--config", "none.toml", "plugins")
    assert (code, complaint(err)) == (2, "none.toml cannot be read: No such file or directory")


@pytest.mark.parametrize(
    ("content", "place", "message"),
    [
        (
            "[tune]\ntrails = 5",
            "[tune] trails",
            "is not an option of tvmtune tune. Did you mean trials",
        ),
        ("trails = 5", "trails", "is not an option of any command. Did you mean trials"),
        ("[tunes]\n", "[tunes]", "is not a command. Did you mean tune"),
        ("tune = 5", "tune", "takes a table of options"),
        ('[tune]\ntrials = "many"', "[tune] trials", "takes a whole number, not 'many'"),
        ("[tune]\ntrials = true", "[tune] trials", "takes a whole number, not True"),
        ("[tune]\ntrials = 1.5", "[tune] trials", "takes a whole number, not 1.5"),
        ("[tune]\nfresh = 1", "[tune] fresh", "takes true or false, not 1"),
        ("[tune]\nlog = 1", "[tune] log", "takes a string, not 1"),
        ('[tune]\narg = "w=1"', "[tune] arg", "takes a list, not 'w=1'"),
        ("[tune]\narg = [1]", "[tune] arg", "takes a string, not 1"),
        ('[tune]\nwait = "soon"', "[tune] wait", "such as 90s, 30m or 1h30m, not 'soon'"),
        ("[tune.trials]\nn = 1", "[tune] trials", "takes a whole number"),
        ("[tune]\njson = true", "[tune] json", "is not an option of tvmtune tune"),
        ("[tune]\nverbose = true", "[tune] verbose", "is not an option of tvmtune tune"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_file(run, tmp_path, content, place, message):
    code, out, err = run(content, "tune", "net")
    assert (code, out) == (2, "")
    text = complaint(err)
    assert text.startswith(f"{tmp_path / 'tvmtune.toml'}: {place} ")
    assert message in text


def test_values_of_subcommands(run):
    code, _, err = run("[vta.layers]\nbatch = 'x'\n", "vta", "layers", "net")
    assert code == 2
    assert "[vta layers] batch takes a whole number" in complaint(err)
    code, _, err = run("[vta.layer]\nbatch = 1\n", "vta", "layers", "net")
    assert "[vta] layer is not an option of tvmtune vta. Did you mean layers" in complaint(err)


def test_a_file_that_is_not_toml(run, tmp_path):
    code, _, err = run("[tune\n", "tune", "net")
    assert code == 2
    assert complaint(err).startswith(f"{tmp_path / 'tvmtune.toml'} is not TOML: ")
    (tmp_path / "tvmtune.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is not TOML"):
        project_file.read(tmp_path / "tvmtune.toml")


def test_an_option_of_the_file_is_named_in_errors_about_its_value(run, tmp_path):
    code, _, err = run("[tune]\ntrials = 0\n", "tune", "net")
    assert code == 2
    path = tmp_path / "tvmtune.toml"
    assert complaint(err) == f"--trials must be at least 1, not 0 (--trials: from {path})"
    code, _, err = run("[bench]\nrepeat = 0\n", "bench", "lib.so")
    assert code == 2
    assert complaint(err).startswith(f"{path}: [bench] repeat is invalid: 0 is not in the range")
    # A callback's error, while other options are still to be read.
    code, _, err = run("[simulate]\nseeds = 0\n", "simulate", "log.json")
    assert code == 2
    assert complaint(err) == f"--seeds must be at least 1, not 0 (--seeds: from {path})"


def test_help_shows_where_values_come_from(run, monkeypatch):
    monkeypatch.setenv("TVMTUNE_TUNE_REPEAT", "7")
    monkeypatch.setenv("COLUMNS", "120")
    code, out, err = run("trials = 500\n[tune]\nno-compile = true\n", "tune", "-h")
    assert code == 0, err
    plain = " ".join(out.split())
    assert re.search(r"--trials N [^-]*?\[tvmtune.toml: 500\]", plain)
    assert re.search(r"--no-compile [^-]*?\[tvmtune.toml: true\]", plain)
    assert re.search(r"--repeat N [^-]*?\[\$TVMTUNE_TUNE_REPEAT: 7\]", plain)


@pytest.mark.slow
def test_doctor_reports_the_file_and_its_errors(run, tmp_path, monkeypatch):
    monkeypatch.setattr("tvmtune.cli.doctor._run_child", lambda linker: {"difference": 0.0})
    monkeypatch.setenv("TVMTUNE_TUNE_TRIALS", "5")
    path = tmp_path / "tvmtune.toml"
    code, out, _ = run("[tune]\ntrials = 500\n", "doctor")
    assert code == 0, out
    assert re.search(rf"pass  project file +{path}: \[tune\] trials = 500", out)
    assert "TVMTUNE_TUNE_TRIALS=5" in out
    # It looks at all commands, not at its own alone.
    code, out, _ = run("[bench]\nrepaet = 500\n", "doctor")
    assert code == 1
    assert f"{path}: [bench] repaet is not an option of tvmtune bench" in out


def test_a_file_of_another_user_is_not_used(run, monkeypatch, tmp_path):
    """Options can name code to run, and /tmp is everybody's."""
    real = os.getuid()
    path = tmp_path / "tvmtune.toml"
    path.touch()
    monkeypatch.setattr(os, "getuid", lambda: real + 1)
    if real == 0:
        os.chown(path, 4242, -1)
    code, _, err = run("trails = 1\n", "plugins")
    assert code == 0
    assert f"warning: {path} belongs to another user: use it with --config {path}" in err
    assert "trails" in run("trails = 1\n", "--config", str(path), "plugins")[2]
