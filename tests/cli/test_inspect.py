"""``tvmtune inspect`` prints the metadata of a library without loading it."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys

import pytest
from click.testing import CliRunner

from libraries import make_library
from models import tiny_cnn
from tvmtune.cli import inspect
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.library import metadata


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return make_library(tiny_cnn(), tmp_path_factory.mktemp("inspect"), threads=1)


def run(*args: object):
    return CliRunner().invoke(inspect.command, [*map(str, args)])


@pytest.mark.slow
def test_the_lines_describe_the_library(library):
    result = run(library)
    assert result.exit_code == 0, result.exception
    rows = {line[:12].strip(): line[13:].strip() for line in result.output.splitlines()}
    assert rows["network"] == "model, layout NCHW"
    assert rows["inputs"] == "data: 1x3x32x32 float32"
    assert rows["outputs"] == "logits: 1x10 float32"
    assert rows["device"] == "cpu: the test's CPU"
    assert rows["threads"] == "1"
    assert rows["tasks"].startswith("1: 1 with their own record")
    assert rows["check"] == "1 output, seed 0"
    assert "apache-tvm 0.27" in rows["versions"]
    assert "conv2d" in result.output


@pytest.mark.slow
def test_json_is_the_metadata(library):
    assert json.loads(run(library, "--json").output) == metadata.read(library)


@pytest.mark.slow
def test_it_loads_neither_the_library_nor_tvm(library, tmp_path):
    """It also works for libraries of other architectures."""
    path = tmp_path / "board.so"
    shutil.copy(library, path)
    with path.open("r+b") as file:
        file.seek(18)
        file.write(struct.pack("<H", 243))  # RISC-V
    code = (
        "import sys\nfrom tvmtune.cli.inspect import command\n"
        "command(standalone_mode=False)\n"
        "print([name for name in ('tvm', 'tvm_ffi', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert done.stdout.strip().endswith("[]"), done.stderr
    assert "riscv" in done.stdout


def test_a_file_that_is_not_a_library_is_rejected(tmp_path):
    path = tmp_path / "x.so"
    path.write_bytes(b"\x7fELF")
    assert type(run(path).exception) is TvmtuneError
    assert "truncated" in str(run(path).exception)
    assert type(run(tmp_path / "none.so").exception) is UsageError
