"""The documentation matches the code."""

import importlib
import importlib.util
import inspect
import re
import sys
from pathlib import Path

import pytest

import tvmtune
from tvmtune import hookspecs
from tvmtune.cli import COMMANDS
from tvmtune.host import HOOKS
from tvmtune.records import schema
from tvmtune.tuning.tuners import TUNERS
from tvmtune.types import Stage, Trial

ROOT = Path(__file__).parent.parent


def read(name: str) -> str:
    return (ROOT / name).read_text()


@pytest.mark.parametrize("hook", HOOKS)
def test_the_plugin_guide_has_the_signature_of_every_hook(hook):
    parameters = inspect.signature(getattr(hookspecs, hook)).parameters
    assert f"`{hook}({', '.join(parameters)})`" in read("docs/plugins.md")


def test_the_log_format_documents_every_field_of_a_trial():
    section = read("docs/log-format.md").split("## `trial`")[1].split("## `verdict`")[0]
    fields = schema.trial(Trial("t", "direct", "w", "c", [])).fields
    assert [f for f in fields if f"`{f}`" not in section] == []


def test_the_log_format_documents_every_failure_stage():
    text = read("docs/log-format.md")
    assert [s for s in Stage.__args__ if f"`{s}`" not in text] == []


def test_the_table_of_operators_is_up_to_date():
    for package in ("torch", "tflite"):
        pytest.importorskip(package)
    path = ROOT / "scripts/operator_table.py"
    spec = importlib.util.spec_from_file_location("operator_table", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    text = read("docs/operators.md")
    if script.versions() not in text:
        pytest.skip(f"the table is not of these packages: {script.versions()}")
    assert text == script.page(), "run: python scripts/operator_table.py"


def test_the_table_of_operators_lists_none_that_is_always_refused():
    text = read("docs/operators.md")
    names = ("NonZero", "Unique", "bernoulli", "exponential", "randn", "randn_like", "floordiv")
    assert [name for name in names if f"| `{name}` |" in text] == []
    tflite = text.partition("## TensorFlow Lite")[2]
    assert [name for name in ("IF", "WHILE", "DELEGATE") if f"`{name}`" in tflite] == []
    assert "``" not in text


@pytest.mark.parametrize("tuner", TUNERS)
def test_the_tuners_page_lists_every_tuner_with_its_options(tuner):
    options = importlib.import_module(TUNERS[tuner]).OPTIONS
    row = next(r for r in read("docs/tuners.md").splitlines() if r.startswith(f"| `{tuner}`"))
    listed = " ".join(f"`{name}={value}`" for name, value in options.items()) or "none"
    assert row.endswith(f"| {listed} |")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_readme_lists_every_command(command):
    assert f"`tvmtune {command}" in read("README.md")


def test_every_package_that_the_architecture_names_exists():
    text = read("docs/architecture.md")
    rooms = re.findall(r"`((?:\w+/)|(?:\w+\.py))`", text)
    assert len(rooms) > 8
    roots = (ROOT / "src/tvmtune", ROOT / "plugins")
    known = {f"{p.name}/" if p.is_dir() else p.name for root in roots for p in root.rglob("*")}
    assert [r for r in rooms if r not in known] == []


def test_the_map_of_the_architecture_has_every_room_and_module():
    rows = [r for r in read("docs/architecture.md").splitlines() if r.startswith("| `")]
    named = re.findall(r"`([^`]+)`", " ".join(row.split("|")[1] for row in rows))
    core = ROOT / "src/tvmtune"
    rooms = [f"{p.parent.name}/" for p in core.glob("*/__init__.py")]
    modules = [p.name for p in core.glob("*.py") if p.name != "__init__.py"]
    assert sorted({*rooms, *modules} - {*named}) == []


def test_each_promise_of_the_reliability_page_names_tests_that_exist():
    missing, file = [], ""
    for name in re.findall(r"`(tests/[\w/]+\.py|test_\w+)`", read("docs/reliability.md")):
        if name.endswith(".py"):
            file = name
        elif f"def {name}(" not in read(file):
            missing.append(f"{file}: {name}")
    assert file
    assert missing == []
    rows = [r for r in read("docs/reliability.md").splitlines() if r.startswith("| ")]
    assert all("`test_" in row for row in rows if row != "| promise | tests |")


def test_the_links_of_the_readme_are_valid():
    links = re.findall(r"\]\((docs/[^)#]+)\)", read("README.md"))
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_imports_of_the_readmes_python_example_work():
    block = re.search(r"```python[^\n]*\n(.*?)```", read("README.md"), re.DOTALL)
    assert block
    imports = [line for line in block[1].splitlines() if re.match(r"(import|from) ", line)]
    exec("\n".join(imports), {})
    assert "tvmtune" in sys.modules
    used = set(re.findall(r"\btvmtune\.(\w+)", block[1]))
    assert used
    assert used <= set(tvmtune.__all__)


def test_every_public_name_exists():
    assert [name for name in tvmtune.__all__ if not hasattr(tvmtune, name)] == []
