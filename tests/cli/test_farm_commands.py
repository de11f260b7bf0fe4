"""Errors of ``tvmtune tracker``, ``serve`` and ``devices``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cli.commands import complaint, tvmtune
from remote import served


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["serve", "--key", "a b"], "'a b' cannot be the key of a board"),
        (["serve", "--key", ""], "'' cannot be the key of a board"),
        (["serve", "--key", "b", "--tracker", "host:port"], "'host:port' is not an address"),
        (["serve", "--key", "b", "--load-library", "no.so"], "there is no file no.so"),
        (["serve", "--key", "b", "--target-attr", "x"], "--target-attr takes K=V"),
        (["devices", "--tracker", ":1"], "':1' is not an address"),
        (["devices", "--wait", "0"], "--wait must be above 0"),
        (["devices", "--wait", "soon"], "--wait takes seconds"),
        (["run", "lib.so", "--wait", "0s"], "--wait must be above 0"),
        (["bench", "lib.so", "--wait", "soon"], "--wait takes seconds"),
    ],
)
def test_invalid_arguments_are_one_line_errors(
    words: list[str], message: str, tmp_path: Path
) -> None:
    done = tvmtune(*words, cwd=tmp_path, timeout=served.LIMIT)
    assert done.returncode == 2
    assert message in complaint(done.stderr)


@pytest.mark.parametrize("words", [["tracker"], ["serve", "--key", "b"]])
@pytest.mark.parametrize("port", ["0", "65536", "-1"])
def test_a_port_is_between_1_and_65535(words: list[str], port: str, tmp_path: Path) -> None:
    done = tvmtune(*words, f"--port={port}", cwd=tmp_path, timeout=served.LIMIT)
    assert done.returncode == 2
    assert f"{port} is not a port number" in done.stderr


@pytest.mark.parametrize("words", [["tracker"], ["serve", "--key", "b"]])
def test_a_foreign_host_is_a_one_line_error(words: list[str], tmp_path: Path) -> None:
    done = tvmtune(*words, "--insecure", "--host", "192.0.2.1", cwd=tmp_path, timeout=served.LIMIT)
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert "cannot listen at 192.0.2.1: " in message
    assert "--host has to be an address of this machine" in message
    unknown = ("--insecure", "--host", "no-such-host.invalid")
    done = tvmtune(*words, *unknown, cwd=tmp_path, timeout=served.LIMIT)
    assert done.returncode == 1
    assert "cannot listen at 'no-such-host.invalid'" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_an_unknown_backend_is_reported(tmp_path: Path) -> None:
    words = ("serve", "--key", "b", "--port", served.free_port(), "--target", "abacus")
    done = tvmtune(*words, cwd=tmp_path, timeout=served.LIMIT)
    assert done.returncode == 1
    assert "this machine cannot serve: " in complaint(done.stderr)
    assert "abacus" in complaint(done.stderr)


def test_the_process_that_holds_the_port_imports_nothing_heavy() -> None:
    code = (
        "import sys, tvmtune.cli.serve, tvmtune.remote.server.server, tvmtune.remote.tracker\n"
        "heavy = {'tvm', 'numpy', 'scipy', 'xgboost', 'onnx', 'rich'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=served.LIMIT)
    assert not done.returncode, done.stderr
