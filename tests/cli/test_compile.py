"""``tvmtune compile``: its progress, as a bar in a terminal and as lines elsewhere."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import time

import onnx
import pytest

from cli.commands import command, tvmtune
from models import tiny_cnn

COMPILE = ("compile", "tiny.onnx", "-o", "lib.so")


@pytest.fixture
def folder(tmp_path):
    onnx.save(tiny_cnn(), tmp_path / "tiny.onnx")
    return tmp_path


@pytest.mark.slow
def test_without_a_terminal_each_phase_is_one_line(folder):
    done = tvmtune(*COMPILE, cwd=folder)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert lines[0] == "loading the network"
    assert lines[-1] == "checking the outputs"
    assert any(line.startswith("compiling kernels (") for line in lines)
    assert len(lines) == len(set(lines))
    assert "\x1b" not in done.stderr
    assert done.stdout.startswith("lib.so: ")
    assert len(done.stdout.splitlines()) == 1


def on_terminal(folder, *words: str) -> tuple[int, str, str]:
    """Exit status, stdout, and what stderr shows on a terminal."""
    mine, theirs = pty.openpty()
    env = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"}
    with subprocess.Popen(
        command(*words), cwd=folder, env=env, stdout=subprocess.PIPE, stderr=theirs, text=True
    ) as process:
        os.close(theirs)
        shown = bytearray()
        try:
            while piece := os.read(mine, 1 << 16):
                shown += piece
        except OSError:  # the other end is closed
            pass
        assert process.stdout is not None
        printed = process.stdout.read()
    os.close(mine)
    return process.returncode, printed, shown.decode(errors="replace")


@pytest.mark.slow
def test_a_terminal_shows_a_bar_that_counts_kernels(folder):
    status, printed, shown = on_terminal(folder, *COMPILE)
    assert status == 0, shown
    assert "━" in shown
    assert "compiling kernels" in shown
    assert printed.startswith("lib.so: ")
    assert "\x1b" not in printed


@pytest.mark.slow
def test_verbose_prints_lines_on_a_terminal_too(folder):
    status, _, shown = on_terminal(folder, "-v", *COMPILE)
    assert status == 0, shown
    assert "━" not in shown
    assert "checking the outputs" in shown.splitlines()


def test_an_error_on_a_terminal_is_the_last_line(folder):
    status, printed, shown = on_terminal(folder, "compile", "none.onnx")
    assert (status, printed) == (2, "")
    assert "tvmtune: none.onnx does not exist" in shown.rstrip().splitlines()[-1]


@pytest.mark.slow
def test_ctrl_c_while_kernels_are_compiled_leaves_nothing(folder):
    with subprocess.Popen(
        command("compile", "--network", "resnet-18", "-o", "lib.so"),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("compiling kernels"):
                break
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        process.wait(60)
    assert process.returncode == 130
    assert rest.endswith("tvmtune: interrupted\n")
    assert "" not in rest.splitlines()
    assert time.monotonic() - began < 30
    assert [path.name for path in folder.iterdir()] == ["tiny.onnx"]
