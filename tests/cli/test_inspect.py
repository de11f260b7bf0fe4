"""``tvmtune inspect``: everything about a library, and none of it by loading it."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys

import pytest
from click.testing import CliRunner

from deploy.building import make_library
from models import tiny_cnn
from tvmtune.cli import inspect
from tvmtune.deploy import metadata
from tvmtune.errors import TvmtuneError, UsageError


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return make_library(tiny_cnn(), tmp_path_factory.mktemp("inspect"), threads=1)


def run(*args: object):
    return CliRunner().invoke(inspect.command, [*map(str, args)])


def test_what_people_want_to_know(library):
    result = run(library)
    assert result.exit_code == 0, result.exception
    rows = {line[:12].strip(): line[13:].strip() for line in result.output.splitlines()}
    assert rows["network"] == "model, layout NCHW"
    assert rows["inputs"] == "data: 1x3x32x32 float32"
    assert rows["outputs"] == "logits: 1x10 float32"
    assert rows["device"] == "cpu: the test's CPU"
    assert rows["threads"] == "1"
    assert rows["tasks"].startswith("1: 1 with a record of their own")
    assert rows["check"] == "1 outputs, seed 0"
    assert "apache-tvm 0.27" in rows["versions"]
    assert "conv2d" in result.output


def test_json_is_the_metadata(library):
    assert json.loads(run(library, "--json").output) == metadata.read(library)


def test_it_loads_neither_the_library_nor_tvm(library, tmp_path):
    """Not even code for a machine that this one is not."""
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


def test_what_is_no_library_of_ours(tmp_path):
    path = tmp_path / "x.so"
    path.write_bytes(b"\x7fELF")
    assert type(run(path).exception) is TvmtuneError
    assert "truncated" in str(run(path).exception)
    assert type(run(tmp_path / "none.so").exception) is UsageError
