"""Functions that these tests call on boards."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvmtune.remote.client.board_client import LeasedBoard, with_board


@with_board
def where(board: LeasedBoard) -> str:
    """The address of the board, after a round trip."""
    _ask(board)
    return str(board.address)


@with_board
def session(board: LeasedBoard) -> tuple[int, int]:
    """The process that holds the session, and the session."""
    _ask(board)
    return os.getpid(), id(board)


@with_board
def nap(board: LeasedBoard, seconds: float) -> str:
    """Keep a board for so long without using CPU time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        _ask(board)
        time.sleep(0.05)
    return str(board.address)


@with_board
def candidate(board: LeasedBoard, library: str) -> list[float]:
    """Run one of ``remote.served.CANDIDATES`` on eight numbers."""
    import tvm

    board.session.upload(library)
    device = board.session.cpu(0)
    x = tvm.runtime.tensor(np.arange(8, dtype="float32"), device)
    y = tvm.runtime.tensor(np.zeros(8, "float32"), device)
    board.session.load_module(Path(library).name)["main"](x, y)
    return [float(value) for value in y.numpy()]


@with_board
def murder(board: LeasedBoard, servers: dict[str, int]) -> Any:
    """Kill this board's server, then call it."""
    os.kill(servers[str(board.address)], signal.SIGKILL)
    time.sleep(0.5)
    _ask(board)


@with_board
def refuse(board: LeasedBoard) -> None:
    board.session.load_module("no-such-library.so")


@with_board
def threads(board: LeasedBoard) -> int:
    count = board.function("runtime.NumThreads")
    assert count is not None
    return int(count())


@with_board
def fills(
    board: LeasedBoard, calls: Sequence[Sequence[Any]]
) -> tuple[int, list[list[tuple[int, ...]]]]:
    """How many tensors are filled for candidates with these arguments, and their shapes."""
    from tvmtune.measure.local import Arguments
    from tvmtune.remote import board_functions

    filled = 0
    fill = board.function(board_functions.FILL)
    assert fill is not None

    def count(tensor: Any, seed: int) -> None:
        nonlocal filled
        filled += 1
        fill(tensor, seed)

    arguments = Arguments(board.session.cpu(0), count)
    shapes = []
    for specs in calls:
        tensors = arguments.of(specs)
        shapes.append([tuple(int(d) for d in tensor.shape) for tensor in tensors])
        assert all(np.isfinite(tensor.numpy()).all() for tensor in tensors)
        assert all(np.any(tensor.numpy()) for tensor in tensors)
    return filled, shapes


def _ask(board: LeasedBoard) -> None:
    echo = board.function("testing.echo")
    assert echo is not None
    assert echo("there?") == "there?"
