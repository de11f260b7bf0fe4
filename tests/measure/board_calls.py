"""What boards are told to do in these tests."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvmtune.farm.lending import Board, with_board


@with_board
def where(board: Board) -> str:
    """Which board this is; asks it something first."""
    _ask(board)
    return str(board.address)


@with_board
def session(board: Board) -> tuple[int, int]:
    """Which process keeps the board, and which session."""
    _ask(board)
    return os.getpid(), id(board)


@with_board
def nap(board: Board, seconds: float) -> str:
    """Keeps a board for so long, without work for anybody's processor."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        _ask(board)
        time.sleep(0.05)
    return str(board.address)


@with_board
def candidate(board: Board, library: str) -> list[float]:
    """Run one of ``farm.served.CANDIDATES`` on eight numbers."""
    import tvm

    board.session.upload(library)
    device = board.session.cpu(0)
    x = tvm.runtime.tensor(np.arange(8, dtype="float32"), device)
    y = tvm.runtime.tensor(np.zeros(8, "float32"), device)
    board.session.load_module(Path(library).name)["main"](x, y)
    return [float(value) for value in y.numpy()]


@with_board
def murder(board: Board, servers: dict[str, int]) -> Any:
    """Kill the server of the board that this is, then ask it something."""
    os.kill(servers[str(board.address)], signal.SIGKILL)
    time.sleep(0.5)
    _ask(board)


@with_board
def refuse(board: Board) -> None:
    board.session.load_module("no-such-library.so")


@with_board
def threads(board: Board) -> int:
    count = board.function("runtime.NumThreads")
    assert count is not None
    return int(count())


@with_board
def fills(board: Board, calls: Sequence[Sequence[Any]]) -> tuple[int, list[list[tuple[int, ...]]]]:
    """How many tensors are filled for candidates with these arguments, and their shapes there."""
    from tvmtune.farm import functions
    from tvmtune.measure.local import Arguments

    filled = 0
    fill = board.function(functions.FILL)
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


def _ask(board: Board) -> None:
    echo = board.function("testing.echo")
    assert echo is not None
    assert echo("there?") == "there?"
