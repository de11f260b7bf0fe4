"""What can be looked at on a machine without any OpenCL device."""

from __future__ import annotations

import json

import onnx
import pytest

from cli.commands import complaint, tvmtune
from models import tiny_cnn

NOTHING = {"TVMTUNE_OPENCL_LIBRARY": "/nonexistent.so"}


@pytest.fixture
def folder(tmp_path):
    onnx.save(tiny_cnn(), tmp_path / "tiny.onnx")
    return tmp_path


@pytest.mark.slow
def test_a_dry_run_assumes_a_typical_gpu(folder):
    words = ("tiny.onnx", "--target", "mali", "--dry-run", "--json")
    done = tvmtune("tune", *words, cwd=folder, env=NOTHING)
    assert done.returncode == 0, done.stderr
    assert "warning: assuming an OpenCL GPU: no OpenCL device: /nonexistent.so" in done.stderr
    plan = json.loads(done.stdout)
    assert plan["device"]["target"]["kind"] == "opencl"
    assert "assumed" not in plan["device"]
    assert [path.name for path in folder.iterdir()] == ["tiny.onnx"]


@pytest.mark.slow
@pytest.mark.parametrize("command", [["tune", "--trials", "1"], ["compile"]])
def test_what_builds_for_the_device_needs_one(folder, command):
    done = tvmtune(*command, "tiny.onnx", "--target", "mali", cwd=folder, env=NOTHING)
    assert done.returncode == 1
    assert complaint(done.stderr).startswith("no OpenCL device: /nonexistent.so")
    assert "--target-attr board=NAME" in done.stderr
