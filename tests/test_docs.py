"""The documents are held to the code."""

import importlib
import inspect
import re
import sys
from pathlib import Path

import pytest

from tvmtune import hookspecs
from tvmtune.cli import COMMANDS
from tvmtune.host import HOOKS
from tvmtune.records.log import trial_to_json
from tvmtune.tuning.tuners import TUNERS
from tvmtune.types import Stage, Trial

ROOT = Path(__file__).parent.parent


def read(name: str) -> str:
    return (ROOT / name).read_text()


@pytest.mark.parametrize("hook", HOOKS)
def test_the_signature_of_every_hook_stands_in_the_plugin_guide(hook):
    parameters = inspect.signature(getattr(hookspecs, hook)).parameters
    assert f"`{hook}({', '.join(parameters)})`" in read("docs/plugins.md")


def test_every_field_of_a_trial_stands_in_the_log_format():
    section = read("docs/log-format.md").split("## `trial`")[1].split("## `verdict`")[0]
    fields = trial_to_json(Trial("t", "direct", "w", "c", []))
    assert [f for f in fields if f"`{f}`" not in section] == []


def test_every_stage_of_failure_stands_in_the_log_format():
    text = read("docs/log-format.md")
    assert [s for s in Stage.__args__ if f"`{s}`" not in text] == []


@pytest.mark.parametrize("tuner", TUNERS)
def test_every_tuner_stands_with_its_options_among_the_tuners(tuner):
    options = importlib.import_module(TUNERS[tuner]).OPTIONS
    row = next(r for r in read("docs/tuners.md").splitlines() if r.startswith(f"| `{tuner}`"))
    listed = " ".join(f"`{name}={value}`" for name, value in options.items()) or "none"
    assert row.endswith(f"| {listed} |")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_stands_in_the_readme(command):
    assert f"`tvmtune {command}" in read("README.md")


def test_every_room_that_the_architecture_names_exists():
    text = read("docs/architecture.md")
    rooms = re.findall(r"`((?:\w+/)|(?:\w+\.py))`", text)
    assert len(rooms) > 8
    core = ROOT / "src/tvmtune"
    known = {f"{p.name}/" if p.is_dir() else p.name for p in core.rglob("*")}
    assert [r for r in rooms if r not in known] == []


def test_the_links_of_the_readme_lead_somewhere():
    links = re.findall(r"\]\((docs/[^)#]+)\)", read("README.md"))
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_python_example_of_the_readme_names_what_exists():
    block = re.search(r"```python\n(.*?)```", read("README.md"), re.DOTALL)
    assert block
    imports = [line for line in block[1].splitlines() if re.match(r"(import|from) ", line)]
    exec("\n".join(imports), {})
    assert "tvmtune" in sys.modules
