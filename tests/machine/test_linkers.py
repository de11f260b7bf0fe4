"""Linkers: their order, TVMTUNE_LINKER, and linking TVM's objects."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from tvmtune.errors import TvmtuneError
from tvmtune.machine import linkers


def fake_tool(folder: Path, name: str) -> Path:
    tool = folder / name
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    return tool


def test_the_bare_linker_comes_before_the_compiler(tmp_path, monkeypatch):
    monkeypatch.delenv("TVMTUNE_LINKER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(TvmtuneError, match="no linker found.*apt-get install binutils"):
        linkers.find_linker()
    for name in ("clang", "gcc", "ld", "ld.lld"):
        tool = fake_tool(tmp_path, name)
        assert linkers.find_linker() == [str(tool)]


def test_a_named_linker_is_used(tmp_path, monkeypatch):
    tool = fake_tool(tmp_path, "my ld")
    monkeypatch.setenv("TVMTUNE_LINKER", f"'{tool}' -z now")
    assert linkers.find_linker() == [str(tool), "-z", "now"]
    monkeypatch.setenv("TVMTUNE_LINKER", "not-there-at-all -x")
    with pytest.raises(TvmtuneError, match="TVMTUNE_LINKER names 'not-there-at-all'"):
        linkers.find_linker()


@pytest.mark.slow
def test_the_linker_links_tvms_objects(tmp_path):
    """In a child process, so that TVM's thread pool does not stay in the tests' process."""
    code = """
import subprocess, sys
from tvmtune.machine import linkers
import numpy as np
import tvm
from tvm import te

a = te.placeholder((8, 8), "float32", "a")
b = te.compute((8, 8), lambda i, j: te.exp(a[i, j]) + te.tanh(a[i, j]), "b")
mod = tvm.IRModule({"main": te.create_prim_func([a, b])})

def link(output, objects, **_):
    subprocess.run([*linkers.find_linker(), "-shared", "-o", output, *objects], check=True)

tvm.compile(mod, target="llvm").export_library(sys.argv[1], fcompile=link)
x = np.linspace(-1, 1, 64, dtype="float32").reshape(8, 8)
y = tvm.runtime.tensor(np.zeros((8, 8), "float32"))
tvm.runtime.load_module(sys.argv[1])["main"](tvm.runtime.tensor(x), y)
np.testing.assert_allclose(y.numpy(), np.exp(x) + np.tanh(x), rtol=1e-5)
"""
    path = tmp_path / "lib.so"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert path.read_bytes()[:4] == b"\x7fELF"
    assert ctypes.sizeof(ctypes.c_void_p) * 8 == {1: 32, 2: 64}[path.read_bytes()[4]]
