"""The examples of the docs run, or say why they cannot; commands and options in them exist."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from docs.pages import (
    FEW_REPEATS,
    MARKS,
    PAGES,
    ROOT,
    Example,
    command,
    command_lines,
    examples,
    option_names,
    shortened,
    split,
)

UNMARKED = {
    "deploy.md": "tests/runtime/test_docs.py",
    "python.md": "tests/test_public_names.py",
}
"""Pages whose examples other tests look up and run."""


IN_CI = ("README.md", "tutorial.md")
"""Pages whose long examples run in CI, too. The commands of the others have tests of their own."""


EXCUSED = {"board": 11, "gpu": 2, "fpga": 4, "network": 6, "container": 1, "fragment": 8}
"""Examples that cannot run here, by mark."""


def having(mark: str) -> list[Path]:
    return [path for path in PAGES if any(e.mark == mark for e in examples(path))]


def run(example: Example, folder: Path, env: Mapping[str, str] | None = None) -> None:
    if name := example.file:
        (folder / name).write_text(example.text)
        return
    for name in ("benchmarks", "examples"):
        if not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name, words in (("tvmtune", "-m tvmtune.cli"), ("python3", ""), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (programs / name).chmod(0o755)
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    shell = (
        ["bash", "-euo", "pipefail", "-c"] if example.language != "python" else ["python3", "-c"]
    )
    done = subprocess.run(
        [*shell, example.text],
        cwd=folder,
        env=os.environ | {"PATH": path, "XDG_CACHE_HOME": str(folder / "cache")} | dict(env or {}),
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, f"{example.page}:{example.line}\n{done.stdout}{done.stderr}"


@pytest.mark.sweep
@pytest.mark.parametrize("path", having("test"), ids=lambda path: path.name)
def test_quick_examples_run(path, tmp_path):
    for example in examples(path):
        if example.file or example.mark == "test":
            run(example, tmp_path)


def long_cases() -> list[object]:
    """Each page with long examples, shortened and as it is written."""
    cases = []
    for path in having("long"):
        marks = [pytest.mark.slow, pytest.mark.long] if path.name in IN_CI else pytest.mark.soak
        cases.append(pytest.param(path, shortened, id=f"{path.name}-shortened", marks=marks))
        as_written = f"{path.name}-as-written"
        cases.append(pytest.param(path, str, id=as_written, marks=pytest.mark.soak))
    return cases


@pytest.mark.parametrize(("path", "rewrite"), long_cases())
def test_long_examples_run_in_the_order_of_the_page(path, rewrite, tmp_path):
    if path.name == "opencl.md" and not list(Path("/etc/OpenCL/vendors").glob("*.icd")):
        pytest.skip("there is no OpenCL device")
    env = FEW_REPEATS if rewrite is shortened else {}
    for example in examples(path):
        if example.file or example.mark == "long":
            run(replace(example, text=rewrite(example.text)), tmp_path, env)


def test_shortened_examples_differ_only_in_budgets_and_network():
    assert shortened("tune resnet-18 --log resnet-18-cpu.json") == (
        "tune squeezenet_v1.1 --log squeezenet_v1.1-cpu.json"
    )
    assert shortened("tvmtune tune a.onnx --trials 40 && tvmtune tune a.onnx --trials=80\n") == (
        "tvmtune tune a.onnx --trials 3 && tvmtune tune a.onnx --trials=4\n"
    )
    assert shortened("Budget(trials=200), seeds=range(20), range(9)") == (
        "Budget(trials=7), seeds=range(1), range(9)"
    )
    assert (
        shortened("simulate x.gz --seeds 20 --tuner xgb") == "simulate x.gz --seeds 1 --tuner xgb"
    )


def test_every_tuning_run_in_long_examples_is_shortened():
    """Also one with another kind of budget, or none."""
    calls = re.compile(r"tvmtune (?:tune|simulate) .*|\b(?:tvmtune\.tune|api\.simulate)\(.*")
    found = [
        line
        for path in PAGES
        for e in examples(path)
        if e.mark == "long"
        for line in calls.findall(e.text)
    ]
    assert len(found) >= 9
    assert [line for line in found if shortened(line) == line] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_example_says_whether_it_runs(path):
    if path.name not in UNMARKED:
        wrong = [
            f"line {e.line}: '{e.mark}'"
            for e in examples(path)
            if not e.file and e.mark not in MARKS
        ]
        assert wrong == [], f"write one of {', '.join(MARKS)} after the language (docs/pages.py)"


def test_most_examples_that_can_run_here_do():
    marks = [e.mark for path in PAGES if path.name not in UNMARKED for e in examples(path)]
    excused = {mark: marks.count(mark) for mark in MARKS if mark not in ("test", "long")}
    # Whoever adds an example that does not run changes this on purpose.
    assert excused == EXCUSED
    assert marks.count("test") >= 4


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_python_examples_are_python(path):
    for example in examples(path):
        if example.language == "python":
            ast.parse(example.text, f"{example.page}:{example.line}")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_commands_and_options_in_examples_exist(path):
    wrong = []
    for line in command_lines(path):
        found, words = command(split(line))
        if found is None:
            wrong.append(line)
            continue
        known = option_names(found)
        given = {word.split("=")[0] for word in words if word.startswith("-") and len(word) > 1}
        wrong += [f"{line}: {name}" for name in sorted(given - known) if not name[1:].isdigit()]
    assert wrong == []
