"""Temporary folders of processes that were killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

import no_locks
from tvmtune.machine import scratch

# A process that is killed while it exports a library.
KILLED = f"""
import os, signal, sys
sys.path[:] = {sys.path!r}
from tvmtune.library import export
with export._objects_in_memory():
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def temporary(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_what_a_killed_export_leaves_is_removed_by_the_next(temporary):
    env = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run([sys.executable, "-c", KILLED], env=env, timeout=120)
    assert done.returncode == -signal.SIGKILL
    (left,) = temporary.iterdir()
    with scratch.folder(scratch.WORK):
        assert left.exists()  # it is young: its owner may be about to lock it
    os.utime(left, (0, 0))
    with scratch.folder(scratch.WORK) as own:
        assert list(temporary.iterdir()) == [own]
    assert list(temporary.iterdir()) == []


def test_a_folder_in_use_is_kept_however_old(temporary):
    with scratch.folder(scratch.WORK) as first:
        os.utime(first, (0, 0))
        with scratch.folder(scratch.WORK):
            assert first.exists()


@pytest.mark.parametrize("number", no_locks.ERRORS)
def test_a_folder_that_cannot_be_locked_is_left_alone(temporary, monkeypatch, number):
    """Another machine, or another mount of the same directory, may have locks."""
    with monkeypatch.context() as patch:
        no_locks.patch(patch, number)
        unlocked = scratch.folder(scratch.WORK)
        made = unlocked.__enter__()
    (made / "file").touch()
    os.utime(made, (0, 0))
    with scratch.folder(scratch.WORK) as own:
        assert sorted(temporary.iterdir()) == sorted([own, made])
    assert (made / "file").exists()
    unlocked.__exit__(None, None, None)
    assert list(temporary.iterdir()) == []
