"""The CUDA row of ``tvmtune doctor``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tvmtune_cuda import doctor, gpus, target, toolkit

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


@pytest.mark.slow
def test_it_lists_the_compiler_and_the_gpu(nvcc, driver):
    result = row(**driver(arch=90))
    assert result["status"] == "pass"
    assert result["detail"].startswith("nvcc ")
    assert result["detail"].endswith("; NVIDIA Stand-in (sm_90, 80 GiB)")


@pytest.mark.slow
def test_without_a_gpu_it_is_a_note_with_the_reason(nvcc, driver):
    result = row(**driver(count=0))
    assert result["status"] == "note"
    assert "compiles; nothing to measure on: the driver finds no NVIDIA GPU" in result["detail"]


@pytest.mark.slow
def test_a_compiler_that_is_not_nvcc_is_a_note(tmp_path: Path):
    tool = tmp_path / "nvcc"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    result = row(**{toolkit.VARIABLE: str(tool)})
    assert (result["status"], result["remedy"]) == ("note", "")
    assert "is it nvcc?" in result["detail"]


def test_nvrtc_is_enough(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("cuda.bindings", reason="NVRTC is not installed")
    monkeypatch.setattr(toolkit, "find", lambda: toolkit.Compiler(toolkit.NVRTC))
    monkeypatch.setattr(target, "look", dict)
    gpu = {"name": "Stand-in", "arch": "sm_90", "memory_bytes": 80 << 30}
    monkeypatch.setattr(gpus, "check", lambda found: gpu)
    assert doctor.check().startswith("nvrtc ")
