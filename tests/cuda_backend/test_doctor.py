"""The row of ``tvmtune doctor``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tvmtune_cuda import doctor, toolkit

SCRIPT = """
import json
from dataclasses import asdict
from tvmtune.cli import doctor
(row,) = [row for row in doctor._addons(False) if row.name == "cuda"]
print(json.dumps(asdict(row)))
"""


def row(**environment: str) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=os.environ | environment,
        capture_output=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_it_names_the_compiler_and_the_gpu(nvcc, driver):
    found = row(**driver(arch=90))
    assert found["status"] == "pass"
    assert found["detail"].startswith("nvcc ")
    assert found["detail"].endswith("; NVIDIA Stand-in (sm_90, 80 GiB)")


def test_without_a_gpu_it_says_why_and_that_it_compiles(nvcc, driver):
    found = row(**driver(count=0))
    assert found["status"] == "pass"
    assert "compiles; nothing to measure on: the driver finds no NVIDIA GPU" in found["detail"]


def test_a_compiler_that_is_none_is_a_note(tmp_path: Path):
    tool = tmp_path / "nvcc"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    found = row(**{toolkit.VARIABLE: str(tool)})
    assert (found["status"], found["remedy"]) == ("note", "")
    assert "is it nvcc?" in found["detail"]


def test_nvrtc_will_do(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("cuda.bindings", reason="NVRTC is not installed")
    monkeypatch.setattr(toolkit, "find", lambda: toolkit.Compiler(toolkit.NVRTC))
    assert doctor.check().startswith("nvrtc ")
