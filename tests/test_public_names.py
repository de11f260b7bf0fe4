"""What ``tvmtune`` exports: documented, and used in the docs."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import tvmtune
from cli.commands import tvmtune as tvmtune_command
from models import tiny_cnn
from tvmtune.records.table import TASK_COLUMNS, TRIAL_COLUMNS
from tvmtune.torch_backend.options import Options

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/python.md").read_text()
NAMES = [name for name in tvmtune.__all__ if not name.startswith("__")]


def blocks(language: str, text: str = PAGE) -> list[str]:
    """The code of fences in a language, whatever marks (tests/docs/pages.py) follow it."""
    return re.findall(rf"```{language}\b.*?\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_a_docstring(name):
    value = getattr(tvmtune, name)
    assert inspect.getdoc(value), name
    members = inspect.getmembers(value, inspect.isfunction) if inspect.isclass(value) else ()
    public = {
        n: f for n, f in members if not n.startswith("_") and f.__module__.startswith("tvmtune")
    }
    assert [n for n, function in public.items() if not inspect.getdoc(function)] == []


@pytest.mark.parametrize("name", ["compile", "load", "plan", "read_log", "tune"])
def test_functions_say_what_they_raise(name):
    assert "Error`" in inspect.getdoc(getattr(tvmtune, name))


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_on_the_page_of_the_python_api(name):
    rows = [row for row in PAGE.splitlines() if row.startswith("| `")]
    assert any(re.search(rf"`{name}[`(]", row.split(" | ")[0]) for row in rows)


def test_examples_use_only_public_names_and_modules():
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    code = {page.name: "".join(blocks("python", page.read_text())) for page in pages}
    files = [path for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".ipynb")]
    code |= {path.name: path.read_text() for path in files}
    known = {*tvmtune.__all__, *(path.stem for path in (ROOT / "src/tvmtune").iterdir())}
    used = {(page, n) for page, text in code.items() for n in re.findall(r"\btvmtune\.(\w+)", text)}
    assert len(used) > 20
    assert {(page, name) for page, name in used if name not in known} == set()


def test_names_are_completed_and_unknown_ones_refused():
    assert set(tvmtune.__all__) <= set(dir(tvmtune))
    with pytest.raises(AttributeError, match="has no attribute 'tunee'"):
        _ = tvmtune.tunee


def test_importing_the_package_imports_no_tvm():
    code = (
        "import sys, tvmtune; dir(tvmtune); "
        "sys.exit(bool({'tvm', 'torch', 'numpy'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("columns", [TRIAL_COLUMNS, TASK_COLUMNS], ids=["trials", "tasks"])
def test_the_page_lists_every_column_with_its_meaning(columns):
    rows = "\n".join(f"| `{name}` | {meaning} |" for name, meaning in columns.items())
    assert f"|---|---|\n{rows}\n\n" in PAGE


def test_the_page_lists_every_option_of_the_backend_of_torch():
    section = PAGE.split("## torch.compile")[1].split("## Other tools")[0]
    assert [n for n in Options.__dataclass_fields__ if f"| `{n}` |" not in section] == []


@pytest.mark.slow
def test_the_examples_of_the_page_run(tmp_path):
    """Those in Python as one program, then the command, with fewer trials."""
    pytest.importorskip("torch")
    pytest.importorskip("pandas")
    onnx.save(tiny_cnn(), tmp_path / "network.onnx")
    program = "\n".join(blocks("python")).replace("trials=200", "trials=10")
    assert "trials=10" in program
    done = subprocess.run(
        [sys.executable, "-W", "error::tvmtune.torch_backend.EagerFallback", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={k: v for k, v in os.environ.items() if k != "TVM_NUM_THREADS"},
    )
    assert done.returncode == 0, done.stderr
    assert "10 trials" in done.stdout
    (commands,) = blocks("bash")
    for line in commands.splitlines():
        name, *words = shlex.split(line)
        assert name == "tvmtune"
        few = {"TVMTUNE_TUNE_TRIALS": "4", "TVMTUNE_TUNE_REPEAT": "2"}
        done = tvmtune_command(*words, cwd=tmp_path, env=few)
        assert done.returncode == 0, done.stderr
    assert len(tvmtune.read_log(tmp_path / "model.json").trials) == 4
