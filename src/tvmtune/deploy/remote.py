"""A library that runs on a board, over TVM's RPC.

The session with the board is in a process of its own that is killed when an answer is overdue: a client
of TVM's RPC may hang for ever. Times are taken on the board, by its own clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtune.deploy import metadata
from tvmtune.errors import TvmtuneError
from tvmtune.farm import devices, protocol
from tvmtune.farm.lending import ENSURE, DESCRIBE, INIT, OVERHEAD, SLOW_LINE, Board, with_board
from tvmtune.workers import Workers

import numpy as np

if TYPE_CHECKING:
    from tvmtune.deploy.session import KernelTime
    from tvmtune.types import JSON

WAIT = 60.0
"""Seconds to wait for a board that is in use."""
RUN = 300.0
"""Seconds that one turn of calls may take."""

_library: tuple[Any, Any]
"""In the process that keeps the board: the virtual machine of the library, and its device."""


class RemoteSession:
    """Implements :class:`tvmtune.deploy.session.Session` on a board."""

    def __init__(
        self,
        path: Path,
        described: JSON,
        remote: str,
        threads: int | None = None,
        *,
        wait: float = WAIT,
    ) -> None:
        """Borrow a board (``KEY`` or ``KEY@HOST:PORT``), and load the library at ``path`` there.

        Raises :class:`TvmtuneError` if there is no such board, or if it cannot run the library.
        """
        key, tracker = protocol.find(remote)
        with protocol.Tracker(tracker) as line:
            devices.check_known(line, key)
        self.key = key
        self.threads = threads or int(described["threads"])
        self._workers = Workers(
            1, init=INIT, options={"threads": self.threads}, recycle=0
        )
        try:
            address = self._call(ENSURE, (str(tracker), key, wait), wait + OVERHEAD)
            if address is None:
                raise TvmtuneError(f"no board '{key}' became free within {wait:g} s: all are in use")
            self.board: JSON | None = self._ask(DESCRIBE, limit=OVERHEAD)
            metadata.check_runnable(path, described, self.board or {})
            limit = path.stat().st_size / SLOW_LINE + RUN
            self._ask("open_library", str(path), described["device"].get("runtime", "cpu"), limit=limit)
        except BaseException:
            self.close()
            raise

    def set_inputs(self, arrays: Sequence[np.ndarray]) -> None:
        size = sum(array.nbytes for array in arrays)
        self._ask("set_inputs", list(arrays), limit=size / SLOW_LINE + OVERHEAD)

    def invoke(self, count: int = 1) -> float:
        return float(self._ask("invoke", count, limit=RUN))

    def outputs(self) -> list[np.ndarray]:
        found: list[np.ndarray] = self._ask("outputs", limit=RUN)
        return found

    def profile(self, repeat: int) -> list[KernelTime]:
        raise TvmtuneError("a library on a board cannot be profiled: TVM's VM has no hook there")

    def close(self) -> None:
        """Give the board back."""
        self._workers.close()

    def _ask(self, function: str, *arguments: Any, limit: float) -> Any:
        name = function if ":" in function else f"{__name__}:{function}"
        kind, value = self._call(name, arguments, limit)
        if kind == "value":
            return value
        if kind == "crash":
            raise TvmtuneError(f"the library took the board's process down: {value}")
        if kind == "lost":
            raise TvmtuneError(f"the board '{self.key}' was lost: {value}")
        raise TvmtuneError(f"on the board '{self.key}': {value}")

    def _call(self, function: str, arguments: tuple[Any, ...], limit: float) -> Any:
        outcome = self._workers.map(function, [arguments], deadline=limit, stage="run")[0]
        if outcome.stage == "timeout":
            raise TvmtuneError(f"the board '{self.key}' did not answer within {limit:.0f} s")
        if not outcome.ok:
            raise TvmtuneError(f"the board '{self.key}': {outcome.message}")
        return outcome.value


@with_board
def open_library(board: Board, path: str, runtime: str) -> None:
    """Upload a compiled network and load it into the board's virtual machine."""
    from tvm.runtime.vm import VirtualMachine

    global _library
    board.session.upload(path, "library.so")
    device = board.session.device(runtime, 0)
    _library = (VirtualMachine(board.session.load_module("library.so"), device), device)
    board.session.remove("library.so")


@with_board
def set_inputs(board: Board, arrays: Sequence[np.ndarray]) -> None:
    import tvm

    machine, device = _library
    machine.set_input("main", *[tvm.runtime.tensor(a, device) for a in arrays])


@with_board
def invoke(board: Board, count: int) -> float:
    """Seconds that ``count`` calls take, by the board's clock."""
    machine, device = _library
    timer = machine.time_evaluator("invoke_stateful", device, number=count, repeat=1)
    return float(timer("main").mean) * count


@with_board
def outputs(board: Board) -> list[np.ndarray]:
    found = _library[0].get_outputs("main")
    return [t.numpy() for t in _flat(found)]


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in _flat(part)]
    return [value]
