"""``tvmtune`` where the file system has no locks."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import no_locks
from cli.commands import complaint, tvmtune
from models import tiny_cnn


@pytest.mark.slow
def test_a_log_is_refused_and_the_rest_works(tmp_path: Path) -> None:
    onnx.save(tiny_cnn(), tmp_path / "tiny.onnx")
    env = no_locks.preloaded(tmp_path)
    tune = ("tune", "--network", "tiny.onnx", "--trials", 2, "--log", "log.json")
    done = tvmtune(*tune, cwd=tmp_path, env=env)
    assert done.returncode == 1
    assert complaint(done.stderr).startswith(
        "cannot write the log log.json: its file system cannot lock files (No locks available)"
    )
    assert not (tmp_path / ".log.json.lock").exists()
    done = tvmtune("compile", "tiny.onnx", "-o", "untuned.so", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
