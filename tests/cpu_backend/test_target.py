"""The cpu backend's target for boards of this machine's kind."""

from __future__ import annotations

import pytest

from tvmtune import host
from tvmtune.errors import UsageError
from tvmtune.machine import cpu_count, describe
from tvmtune.machine import processor as host_cpu
from tvmtune.remote.client import boards
from tvmtune_cpu.target import LEVELS


@pytest.fixture
def board(monkeypatch) -> dict:
    """This machine as a board that is served without LLVM."""
    description = describe.describe() | {"gpus": []}
    monkeypatch.setattr(boards, "ask", lambda remote: description)
    monkeypatch.setattr(boards, "version_trouble", lambda description: "")
    return description


def processor(remote: str = "board", **attrs: object) -> str:
    return str(host.backend("cpu").make_target(dict(attrs), remote).target["mcpu"])


def test_a_board_without_llvm_and_with_this_cpu_has_the_same_target(board):
    """So that its records and those of a board with LLVM are for the same device."""
    assert processor() == host_cpu.name()


def test_another_cpu_gets_the_level_of_its_instruction_set(board):
    board["cpu"] = "another CPU"
    features = set(board["features"])
    wanted = next(level for level, needed in LEVELS.items() if needed <= features)
    assert processor() == wanted
    board["mcpu"] = "znver3"
    assert processor() == "znver3"


def test_more_threads_than_the_board_has_are_rejected(board):
    most = cpu_count.count_cpus().usable
    with pytest.raises(UsageError, match=f"threads={most + 1}: .* the board has {most}"):
        processor(threads=most + 1)


@pytest.mark.parametrize("others", [{}, {"mcpu": "znver3"}], ids=["asked", "described"])
def test_no_threads_are_rejected(board, others):
    with pytest.raises(UsageError, match="threads must be at least 1, not 0"):
        processor(threads=0, **others)
