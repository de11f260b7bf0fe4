"""The examples of docs/deploy.md run, and all print the same values."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.test_bench import RUN_KEYS
from libraries import make_library
from models import tiny_cnn
from tvmtune import api, networks
from tvmtune.library import metadata
from tvmtune.machine.threads import allowed_cpus

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = (DOCS / "deploy.md").read_text()
pytestmark = pytest.mark.skipif(len(allowed_cpus()) < 2, reason="the examples use two CPUs")


def block(language: str, first_line: str = "", text: str = TEXT) -> str:
    """The first example in this language that starts with this line."""
    found = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    return next(one for one in found if one.startswith(first_line))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with ``lib.so`` and the tests' own interpreter as ``python3``."""
    path = tmp_path_factory.mktemp("docs")
    make_library(tiny_cnn(size=224), path)
    python = path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def values(folder):
    """The network's outputs for ones."""
    network = networks.load(str(folder / "model.onnx"))
    ones = np.ones((1, 3, 224, 224), "float32")
    return network.reference({"data": ones})[0].ravel()[:3]


def run(folder: Path, *command: str) -> str:
    env = {key: value for key, value in os.environ.items() if key != "TVM_NUM_THREADS"}
    env["PATH"] = f"{folder / 'bin'}{os.pathsep}{env['PATH']}"
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def printed(output: str) -> list[float]:
    (line,) = [line for line in output.splitlines() if line.startswith("values")]
    return [float(word) for word in line.split()[1:]]


@pytest.mark.slow
def test_python_with_tvmtune(folder, values):
    output = run(folder, "python3", "-c", block("python", "# with tvmtune"))
    assert "data: 1x3x224x224 float32 -> logits: 1x10 float32" in output
    assert printed(output) == pytest.approx(values, rel=1e-3)


@pytest.mark.slow
def test_python_with_tvm_only(folder, values):
    code = block("python", "# with TVM only")
    assert "tvmtune" not in code
    assert printed(run(folder, "python3", "-c", code)) == pytest.approx(values, rel=1e-3)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_cpp(folder, values):
    (folder / "run.cpp").write_text(block("cpp"))
    output = run(folder, "sh", "-e", "-c", block("sh", "# build and run"))
    assert printed(output) == pytest.approx(values, rel=1e-3)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_cpp_with_a_static_library(folder, values):
    """The same program with the other way to get the library, linked with each form."""
    code = block("cpp")
    load = re.search(r"  ffi::Module library = .*?;\n", code, re.DOTALL)
    assert load
    other = "".join(re.findall(r"^  .*\n", block("cpp", "// static"), re.MULTILINE))
    first = block("cpp", "// static").partition("\n\n")[0] + "\n"
    program = code.replace(load[0], other)
    program = program.replace("int main() {", f"{first}\nint main() {{", 1)
    program = program.replace(
        "  std::printf(", '  std::printf("%.20s\\n", tvmtune_metadata);\n  std::printf(', 1
    )
    (folder / "run.cpp").write_text(program)
    plan = api.plan(networks.load(str(folder / "model.onnx")))
    for name in ("lib.o", "lib.a"):
        api.compile(plan, folder / name)
        output = run(folder, "sh", "-e", "-c", block("sh", f"# build with {name}"))
        assert printed(output) == pytest.approx(values, rel=1e-3)
        assert output.startswith('{"format": 1')
    api.compile(plan, folder / "lib.tar")
    run(folder, "sh", "-e", "-c", block("sh", "# link where it runs"))
    code = block("python", "# with TVM only").replace("./lib.so", "./linked.so")
    assert printed(run(folder, "python3", "-c", code)) == pytest.approx(values, rel=1e-3)
    code = code.replace("./linked.so", "./lib.tar")
    assert printed(run(folder, "python3", "-c", code)) == pytest.approx(values, rel=1e-3)


@pytest.mark.slow
def test_reading_the_metadata(folder):
    output = run(folder, "python3", "-c", block("python", "# reading the metadata"))
    assert output.strip() == "model"


@pytest.mark.slow
def test_every_key_of_the_metadata_is_documented(folder):
    table = TEXT[TEXT.index("## Metadata") : TEXT.index("## How runtimes")]
    keys = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| `.*?\|", table, re.MULTILINE))))
    # Only if simulated, and only if it has state.
    assert keys - set(metadata.read(folder / "lib.so")) == {"modelled", "state"}


def test_every_key_of_the_report_is_documented():
    report = json.loads(block("json", '{\n  "runs"', text=(DOCS / "json.md").read_text()))
    assert set(report) == {"runs", "network", "device", "host", "notes", "background_load", "time"}
    assert set(report["runs"][0]) == RUN_KEYS
