"""The cpu backend's target for boards of this machine's kind."""

from __future__ import annotations

import pytest
import tvm

from tvmtune import host, system
from tvmtune.errors import UsageError
from tvmtune.farm import describe, devices
from tvmtune_cpu.target import LEVELS


@pytest.fixture
def board(monkeypatch) -> dict:
    """This machine, served without an LLVM."""
    found = describe.describe() | {"gpus": []}
    monkeypatch.setattr(devices, "ask", lambda remote: found)
    monkeypatch.setattr(devices, "version_trouble", lambda found: "")
    return found


def processor(remote: str = "board", **attrs: object) -> str:
    return str(host.backend("cpu").make_target(dict(attrs), remote).target["mcpu"])


def test_a_light_board_with_this_machines_processor_has_the_same_target(board):
    """So that its records and those of a board with an LLVM are of one device."""
    assert processor() == str(tvm.get_global_func("target.llvm_get_system_cpu")())


def test_of_another_processor_the_level_of_its_instructions_is_taken(board):
    board["cpu"] = "another CPU"
    told = set(board["features"])
    wanted = next(level for level, needed in LEVELS.items() if needed <= told)
    assert processor() == wanted
    board["mcpu"] = "znver3"
    assert processor() == "znver3"


def test_more_threads_than_the_board_has_are_refused_at_once(board):
    most = system.count_cpus().usable
    with pytest.raises(UsageError, match=f"threads={most + 1}: .* the board has {most}"):
        processor(threads=most + 1)
