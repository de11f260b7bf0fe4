"""``--json``: one document on stdout with the fields of docs/json.md, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from cli.commands import tvmtune
from models import tiny_cnn
from tvmtune.cli import COMMANDS, group, main
from tvmtune.cli.json_output import text

DOCS = Path(__file__).parents[2] / "docs" / "json.md"
KERNEL = Path(__file__).parents[2] / "examples" / "rgb2yuv.py"
OPTIONAL = {"check"}
"""Fields that the docs describe beside the examples."""
SERVERS = ("serve", "tracker")
"""Commands that run until they are interrupted, and print no result."""


def documented(command: str) -> Any:
    """The example of a command in the docs."""
    part = re.split(rf"^## `tvmtune {command}\b.*$", DOCS.read_text(), flags=re.MULTILINE)[1]
    block = re.search(r"```json\n(.*?)```", part.partition("\n## ")[0], re.DOTALL)
    assert block, command
    return json.loads(block[1])


def check_fields(actual: Any, example: Any, where: str) -> None:
    """``actual`` has the fields of ``example``, of the same types; fields without an example (empty
    objects, null) may hold anything."""
    if isinstance(example, dict) and example:
        assert isinstance(actual, dict), where
        if "..." in example:
            return
        assert set(example) <= set(actual) <= {*example, *OPTIONAL}, where
        for key, value in example.items():
            check_fields(actual[key], value, f"{where}.{key}")
    elif isinstance(example, list) and example and isinstance(actual, list):
        assert actual, where
        for item in actual:
            check_fields(item, example[0], f"{where}[]")
    elif isinstance(example, (bool, str)):
        assert isinstance(actual, type(example)) or actual is None, where
    elif isinstance(example, (int, float)):
        assert actual is None or isinstance(actual, (int, float)), where


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, its library, and a log."""
    path = tmp_path_factory.mktemp("json")
    onnx.save(tiny_cnn(), path / "tiny.onnx")
    return path


@pytest.fixture
def document(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    """Runs a command; returns the document on its stdout."""
    monkeypatch.chdir(folder)

    def run(*args: object, code: int = 0) -> Any:
        with pytest.raises(SystemExit) as ended:
            main([*map(str, args)])
        captured = capfd.readouterr()
        assert ended.value.code == code, captured.err
        return json.loads(captured.out)

    return run


def test_every_command_that_prints_results_has_json():
    for name in COMMANDS:
        options = {word for param in group.get_command(None, name).params for word in param.opts}
        assert ("--json" in options) == (name not in SERVERS), name
        if name not in (*SERVERS, "inspect"):
            assert documented(name)


@pytest.mark.parametrize("name", ["networks", "plugins"])
def test_lists(document, name):
    check_fields(document(name, "--json"), documented(name), name)


def test_tasks(document):
    check_fields(document("tasks", "tiny.onnx", "--json"), documented("tasks"), "tasks")


@pytest.mark.slow
def test_a_library_is_compiled_run_and_timed(document, folder):
    compiled = document("compile", "tiny.onnx", "-o", "lib.so", "--json")
    check_fields(compiled, documented("compile"), "compile")
    assert compiled["bytes"] == (folder / "lib.so").stat().st_size
    ran = document("run", "lib.so", "--json", "--output", "y.npz")
    check_fields(ran, documented("run"), "run")
    assert ran["output_file"] == "y.npz"
    assert (folder / "y.npz").exists()
    # With and without a value, before and after the library.
    for words in (["lib.so", "--json"], ["--json", "lib.so"], ["lib.so", "--json", "-"]):
        timed = document("bench", "--repeat", 2, *words)
        check_fields(timed, documented("bench"), "bench")
    assert document("inspect", "lib.so", "--json")["threads"] == compiled["threads"]


@pytest.mark.slow
def test_bench_writes_a_file_beside_its_table(tiny_library, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["bench", str(tiny_library), "--repeat", "2", "--json", "report.json"])
    assert "median ms" in capfd.readouterr().out
    check_fields(json.loads(Path("report.json").read_text()), documented("bench"), "bench")


def test_bench_without_a_library_is_wrong_usage(folder, monkeypatch, capfd):
    monkeypatch.chdir(folder)
    for words in ([], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            main(["bench", *words])
        assert ended.value.code == 2
        captured = capfd.readouterr()
        assert "Missing argument 'LIB'" in captured.err
        assert captured.out == ""


def test_a_dry_run_prints_the_plan(document):
    plan = document("tune", "tiny.onnx", "--trials", 7, "--dry-run", "--json")
    example = documented("tune")
    fields = list(example)[: list(example).index("tuning")]
    check_fields(plan, {name: example[name] for name in fields}, "tune --dry-run")
    assert plan["budget"]["trials"] == 7


@pytest.mark.slow
def test_a_network_is_tuned_and_its_log_distilled(folder, document):
    tune = ("tune", "tiny.onnx", "--repeat", 2, "--log", "log.json", "--json")
    done = tvmtune(*tune, "--trials", 9, "--bench-repeat", 4, "-o", "tuned.so", cwd=folder)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    example = documented("tune")
    check_fields(result, example | {"bench": documented("bench")}, "tune")
    assert result["tuning"]["trials"] == 9
    assert {run["repeats"] for run in result["bench"]["runs"]} == {4}
    assert "stopped because" in done.stderr  # progress stays there

    quiet = tvmtune("-q", *tune, "--trials", 10, "--no-compile", cwd=folder)
    assert quiet.returncode == 0, quiet.stderr
    assert quiet.stderr == ""
    again = json.loads(quiet.stdout)
    check_fields(again, example | {"library": None, "bench": None}, "tune --no-compile")
    assert again["tuning"]["new_trials"] == 1

    check_fields(document("distill", "log.json", "--json"), documented("distill"), "distill")
    report = document("report", "log.json", "--no-code", "--csv", "log.csv", "--json")
    check_fields(report, documented("report"), "report")


@pytest.mark.slow
def test_doctor(document, monkeypatch):
    monkeypatch.setattr("tvmtune.cli.doctor._run_child", lambda linker: {"difference": 0.0})
    check_fields(document("doctor", "--json"), documented("doctor"), "doctor")


@pytest.mark.slow
def test_what_a_kernel_file_prints_goes_to_stderr(folder):
    """From Python, from a child process, and from native code."""
    noisy = "import os\nprint('python')\nos.system('echo child')\nos.write(1, b'native\\n')\n"
    (folder / "noisy.py").write_text(KERNEL.read_text().replace("import ", noisy + "import ", 1))
    done = tvmtune("tasks", "noisy.py", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    check_fields(json.loads(done.stdout), documented("tasks"), "tasks")
    assert {"python", "child", "native"} <= set(done.stderr.split())


def test_nothing_is_printed_if_the_command_fails(folder, monkeypatch, capfd):
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as ended:
        main(["tasks", "absent.onnx", "--json"])
    captured = capfd.readouterr()
    assert (ended.value.code, captured.out) == (2, "")
    assert "absent.onnx does not exist" in captured.err


def test_infinite_numbers_become_null():
    assert json.loads(text({"a": [float("inf"), float("nan"), 1.5], "b": ("x",)})) == {
        "a": [None, None, 1.5],
        "b": ["x"],
    }
