"""Calls to a board that is served for VTA, each made in the process that keeps it
(:mod:`tvmtune.farm.lending`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tvmtune.farm.lending import Board, with_board
from tvmtune_vta import driver


@with_board
def describe(board: Board) -> dict[str, Any]:
    """What :func:`tvmtune_vta.driver.describe` says there."""
    found: dict[str, Any] = json.loads(str(_ready(board, driver.DESCRIBE)()))
    return found


@with_board
def program_fpga(board: Board, path: str) -> None:
    """Upload a bitstream and have it loaded."""
    load = _ready(board, driver.PROGRAM)
    name = Path(path).name
    board.session.upload(path, name)
    load(str(board.session.get_function("tvm.rpc.server.workpath")(name)))
    board.session.remove(name)


def _ready(board: Board, name: str) -> Any:
    initialise = board.function("tvmtune.board.initialise")
    if initialise is None:
        raise RuntimeError("serve the board with tvmtune serve, of this version")
    initialise("vta")
    return board.function(name)
