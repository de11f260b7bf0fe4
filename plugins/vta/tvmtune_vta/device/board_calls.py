"""Calls to a board served for VTA, made in the process that holds its lease
(:mod:`tvmtune.remote.client.board_client`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tvmtune.remote.client.board_client import LeasedBoard, with_board
from tvmtune_vta.device import packed_functions


@with_board
def describe(board: LeasedBoard) -> dict[str, Any]:
    """The result of :func:`tvmtune_vta.device.packed_functions.describe` on the board."""
    reply: dict[str, Any] = json.loads(str(_packed_function(board, packed_functions.DESCRIBE)()))
    return reply


@with_board
def program_fpga(board: LeasedBoard, path: str) -> None:
    """Upload a bitstream and load it."""
    load = _packed_function(board, packed_functions.PROGRAM)
    name = Path(path).name
    board.session.upload(path, name)
    load(str(board.session.get_function("tvm.rpc.server.workpath")(name)))
    board.session.remove(name)


def _packed_function(board: LeasedBoard, name: str) -> Any:
    initialise = board.function("tvmtune.board.initialise")
    if initialise is None:
        raise RuntimeError("serve the board with tvmtune serve, of this version")
    initialise("vta")
    return board.function(name)
