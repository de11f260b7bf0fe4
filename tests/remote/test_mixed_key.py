"""Emulated boards of different CPUs under one key: tests/remote/test_other_boards.py in full size."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import models
from remote import emulated, served
from remote.test_emulated import ARM, DOT
from tvmtune import api
from tvmtune.errors import TvmtuneError
from tvmtune.machine import board_identity
from tvmtune.measure.board_pool import BoardPool
from tvmtune.remote.client import boards
from tvmtune.remote.client.lease import BoardLease

pytestmark = [
    pytest.mark.soak,
    emulated.needed,
]

KEY = "rk3399"
CANDIDATE = "measure.board_calls:candidate"


def test_only_boards_like_the_first_are_used(farm: served.Farm, tmp_path: Path) -> None:
    """A candidate with dot products would be killed by SIGILL on a Cortex-A72."""
    (dot,) = served.build(tmp_path, {"dot": DOT}, ARM | {"mcpu": "cortex-a76"}).values()
    _, tracker = farm.tracker()
    newer, newer_at = farm.emulated(KEY, tracker, cpu="cortex-a76")
    identity = board_identity.of(boards.ask(f"{KEY}@{tracker}", served.LIMIT))
    assert "asimddp" in identity["features"]
    onnx.save(models.tiny_cnn(), tmp_path / "tiny.onnx")
    network = api.load(str(tmp_path / "tiny.onnx"))
    plan = api.plan(network, "arm", remote=f"{KEY}@{tracker}", measured=True)
    assert plan.device.board == identity, "the key names a known board, so nobody had to ask"
    plan.backend.make_runner(plan.device)
    _, older_at = farm.emulated(KEY, tracker, cpu="cortex-a72")
    for known in ({}, identity):
        lines: list[str] = []
        with BoardPool(KEY, tracker, report=lines.append, identity=known) as pool:
            naps = [pool.submit("measure.board_calls:nap", (1.0,), served.LIMIT) for _ in range(6)]
            calls = [pool.submit(CANDIDATE, (str(dot),), served.LIMIT) for _ in range(6)]
            found = pool.collect([*naps, *calls], deadline=served.LIMIT, stage="run")
        used = {outcome.value for outcome in found[: len(naps)]}
        assert len(used) == 1, "boards of both CPUs measured for one run"
        refused, *more = [line for line in lines if line.startswith(f"the board '{KEY}' at")]
        assert not more, lines
        assert "cannot be used" in refused
        assert f"tvmtune serve --key {KEY}-2" in refused
        if known:
            assert used == {str(newer_at)}
            assert not any("SIGILL" in outcome.message for outcome in found)
            assert f"at {older_at} cannot be used" in refused
            assert "it lacks CPU features " in refused

    for _ in range(3):  # the tracker grants boards in turns
        with BoardLease(f"{KEY}@{tracker}", identity=identity) as board:
            assert board.address == newer_at
    newer.end()
    with pytest.raises(TvmtuneError, match="it lacks CPU features "):
        BoardLease(f"{KEY}@{tracker}", wait=1.0, identity=identity)
