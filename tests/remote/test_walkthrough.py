"""Run the commands of docs/farm.md with an emulated board."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from cli.commands import tvmtune
from remote import emulated, served
from remote.test_docs import TEXT
from tvmtune import networks
from tvmtune.accuracy import relative_error
from tvmtune.networks.inputs import random_inputs
from tvmtune.records.log import read_log
from tvmtune.remote.client.lease import BoardLease
from tvmtune.runtime.library import Library

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    emulated.needed,
]


FEW = ["--repeat", "3"]
"""Times of an emulated board mean nothing, and take long."""
SIDE = 32
"""Pixels of the images' sides, for the same reason."""


def documented(command: str) -> list[str]:
    """The arguments of the first documented call of this command for the key rk3399."""
    for line in re.findall(rf"^    tvmtune ({command} .*?)(?:  +#.*)?$", TEXT, re.MULTILINE):
        if command == "devices" or "rk3399" in line:
            return shlex.split(line)
    raise AssertionError(f"docs/farm.md has no such line for {command}")


def test_the_documented_commands_tune_and_bench_on_a_board(
    farm: served.Farm, tmp_path: Path
) -> None:
    _, tracker = farm.tracker()
    farm.emulated("rk3399", tracker)
    where = {"TVM_TRACKER_HOST": tracker.host, "TVM_TRACKER_PORT": str(tracker.port)}

    def run(words: list[str], timeout: float = served.LIMIT) -> str:
        done = tvmtune(*words, cwd=tmp_path, env=where, timeout=timeout)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    assert "rk3399" in run(documented("devices"))
    tune = documented("tune")
    assert tune[tune.index("--network") + 1] == "mobilenet"
    small = ["--shape", f"data:1x3x{SIDE}x{SIDE}", "--tasks", "top3", "--trials", "6"]
    said = run([*tune, *small, *FEW], timeout=1200.0)
    assert "the output is right" in said
    (log,) = tmp_path.glob("mobilenet-*.json")
    assert len(read_log(log).trials) == 6
    bench = documented("bench")
    # the row; an emulated board reports this machine's CPU
    assert "tvmtune" in run(bench + FEW)

    network = networks.load("mobilenet", shapes={"data": (1, 3, SIDE, SIDE)})
    inputs = random_inputs(network.inputs, 5)
    with BoardLease(f"rk3399@{tracker}") as board:
        (got,) = Library.open(tmp_path / bench[1], board=board).run(inputs)
    (want,) = network.reference(inputs)
    assert relative_error(got, want) <= 1e-4
