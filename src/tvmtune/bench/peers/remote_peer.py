"""Peers on a board, timed in turns with a library on the same board.

Functions marked :func:`with_board` run in the process that holds the session with the board, see
:meth:`tvmtune.remote.client.lease.BoardLease.ask`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtune.bench.peers import PEERS, Peer, board_functions, choose, parse_names
from tvmtune.bench.peers.base import onnx_form
from tvmtune.remote.client.board_client import (
    OVERHEAD,
    SLOW_LINE,
    LeasedBoard,
    Result,
    tensors,
    with_board,
)
from tvmtune.remote.client.lease import RUN, BoardLease, CallPace
from tvmtune.runtime.remote_session import total_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from tvmtune.types import Network


class RemotePeer(Peer):
    """A peer that is installed on a board."""

    package = ""

    def __init__(self, name: str, board: BoardLease) -> None:
        self.name = name  # type: ignore[misc]
        self.parallel = PEERS[name].parallel  # type: ignore[misc]
        self._board = board
        self._pace = CallPace()
        self._version = ""

    @property
    def version(self) -> str:
        return self._version

    def available(self) -> str | None:
        if self._board.described is None:
            return f"{self.name} is skipped: on boards, peers need tvmtune serve"
        self._board.provide(board_functions.MODULE)
        reason = self._ask(_why_unavailable, limit=RUN)
        return f"on the board '{self._board.key}': {reason}" if reason else None

    def load(self, network: Network, threads: int) -> None:
        with tempfile.TemporaryDirectory(prefix="tvmtune-") as folder:
            path = Path(folder) / "network.onnx"
            path.write_bytes(onnx_form(network))
            limit = path.stat().st_size / SLOW_LINE + RUN
            specs = board_functions.SentNetwork.serialize(network)
            self._version = self._ask(_load, specs, str(path), threads, limit=limit)
        self._order = [spec.name for spec in network.inputs]

    def set_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        arrays = [inputs[name] for name in self._order]
        limit = total_bytes(arrays) / SLOW_LINE + OVERHEAD
        self._ask(_set_inputs, arrays, limit=limit)

    def invoke(self, count: int = 1) -> float:
        seconds = self._ask(_invoke, count, limit=self._pace.limit(count))
        return self._pace.seen(float(seconds), count)

    def outputs(self) -> list[np.ndarray]:
        arrays: list[np.ndarray] = self._ask(_outputs, limit=RUN)
        return arrays

    def _ask(self, function: Callable[..., Result], *arguments: Any, limit: float) -> Any:
        return self._board.ask(function, self.name, *arguments, limit=limit)


def parse(names: str, board: BoardLease) -> list[Peer]:
    """As :func:`tvmtune.bench.peers.parse`, on the board; ``all`` adds those that it has installed."""
    return choose(parse_names(names), {name: RemotePeer(name, board) for name in PEERS})


@with_board
def _why_unavailable(board: LeasedBoard, name: str) -> str:
    """The reason why the board cannot run a peer; empty if it can."""
    return str(board.own_function(board_functions.INSTALLED)(name))


@with_board
def _load(board: LeasedBoard, name: str, specs: str, path: str, threads: int) -> str:
    """Have the peer load the ONNX model at ``path`` of this machine; returns the peer's version."""
    load = board.own_function(board_functions.LOAD)
    file = Path(path).name
    board.session.upload(path, file)
    uploaded = str(board.session.get_function("tvm.rpc.server.workpath")(file))
    try:
        return str(load(name, specs, uploaded, threads))
    finally:
        board.session.remove(file)


@with_board
def _set_inputs(board: LeasedBoard, name: str, arrays: Sequence[np.ndarray]) -> None:
    on_board = tensors(arrays, board.session.cpu(0))
    board.own_function(board_functions.SET_INPUTS)(name, *on_board)


@with_board
def _invoke(board: LeasedBoard, name: str, count: int) -> float:
    """Seconds that ``count`` calls take, by the board's clock."""
    return float(board.own_function(board_functions.INVOKE)(name, count))


@with_board
def _outputs(board: LeasedBoard, name: str) -> list[np.ndarray]:
    output = board.own_function(board_functions.OUTPUT)
    arrays: list[np.ndarray] = []
    while (tensor := output(name, len(arrays))) is not None:
        arrays.append(tensor.numpy())
    return arrays
