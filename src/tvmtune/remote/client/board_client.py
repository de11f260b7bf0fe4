"""A session with a board, and the functions that use it; runs in a process that may be killed.

A client of TVM's RPC may hang forever while it holds Python's lock. So a process of its own holds the
session (:class:`tvmtune.remote.client.lease_process.LeaseProcess`), and calls by name:
:func:`connect`, functions marked :func:`with_board`, :func:`release`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from tvmtune.remote import board_functions
from tvmtune.remote.protocol import DIED, RESTARTED, Address, Tracker, Unreachable
from tvmtune.workers import brief

if TYPE_CHECKING:
    import numpy as np

Kind = Literal["value", "run", "crash", "timeout", "lost"]
"""How a call ended on the board: with a value; ``"run"``, the call failed and the session goes on;
``"crash"``, the board's process died; ``"timeout"``, the session's time limit ended it; ``"lost"``, the
connection broke."""
Result = tuple[Kind, Any]
"""The value, or for any other kind its message."""

INIT, CONNECT, RELEASE = (f"{__name__}:{function}" for function in ("init", "connect", "release"))
"""For :mod:`tvmtune.workers`."""
SLOW_LINE = 200e3
"""Bytes per second; an upload that is slower fails."""
OVERHEAD = 10.0
"""Seconds that a call may take beyond its work and its upload: messages, and the board's memory."""

FROM_THE_BOARD = "Error caught from RPC call"
"""Prefix of TVM's RPC for errors raised on the board; the connection is intact."""
_EXPIRED = "RPCSessionTimeoutError"
"""In the error that a server sends when the session's time limit has passed."""
_options: dict[str, Any] = {}
_board: LeasedBoard | None = None


class LeasedBoard:
    """A leased board with an open session."""

    def __init__(self, address: Address, session: Any) -> None:
        self.address = address
        self.session = session
        self.held: dict[str, Any] = {}
        """Objects on the board that functions keep from call to call. They keep the session alive."""
        self._functions: dict[str, Any] = {}

    def function(self, name: str) -> Any | None:
        """The board's function ``name``, or None if it has none."""
        if name not in self._functions:
            try:
                self._functions[name] = self.session.get_function(name)
            except AttributeError:
                self._functions[name] = None
        return self._functions[name]

    def own_function(self, name: str) -> Any:
        """A function that only boards served by ``tvmtune serve`` have.

        Raises RuntimeError if this board lacks it.
        """
        function = self.function(name)
        if function is None:
            raise RuntimeError(
                f"the board has no function {name}: serve it with tvmtune serve, of this version"
            )
        return function

    def answers(self) -> bool:
        """Whether the session is still open. TVM's errors do not say: each way in which a connection
        breaks raises another one."""
        try:
            self.session.get_function("tvm.rpc.server.workpath")
        except Exception as error:
            return isinstance(error, AttributeError) or FROM_THE_BOARD in str(error)
        return True

    def describe(self) -> dict[str, Any] | None:
        """The board's description of itself; None if TVM's own server serves it."""
        function = self.function("tvmtune.board.describe")
        return None if function is None else json.loads(str(function()))

    def close(self) -> None:
        """End the session."""
        self.held, self._functions, self.session = {}, {}, None
        gc.collect()


@contextlib.contextmanager
def board_session(tracker: Address, key: str, wait: float) -> Iterator[LeasedBoard]:
    """A leased board, in the calling process.

    Raises :class:`Unreachable` if none becomes free within ``wait`` seconds, or if the tracker or the
    board that it granted does not answer.
    """
    with Tracker(tracker) as connection:
        granted = connection.request(key, wait)
    if granted is None:
        raise Unreachable(f"no board '{key}' became free within {wait:g} s: all are in use")
    board = _open(*granted)
    try:
        yield board
    finally:
        board.close()


def _open(address: Address, match: str, limit: float = 0.0) -> LeasedBoard:
    """Open a session with the board that expects the key ``match``. Its server ends the session after
    ``limit`` seconds, 0 for never."""
    from tvm import rpc

    try:
        return LeasedBoard(
            address, rpc.connect(address.host, address.port, match, session_timeout=limit)
        )
    except Exception as error:
        raise Unreachable(f"the board at {address} cannot be reached: {brief(error)}") from None


def init(options: dict[str, Any]) -> None:
    """Called once in each process. ``options["threads"]``: the number of threads for kernels on the
    board."""
    global _options
    _options = options


def connect(address: str, match: str, limit: float) -> tuple[str, dict[str, Any] | None]:
    """Open a session with the board that a tracker granted, as :func:`_open`, and keep it.

    Returns why the board cannot run kernels as the options ask (empty if it can), and its description.
    """
    global _board
    release()
    _board = _open(Address.parse(address), match, limit)
    trouble = set_threads(_board)
    return trouble, None if trouble else _board.describe()


def release() -> None:
    """Give the board back."""
    global _board
    board, _board = _board, None
    if board is not None:
        board.close()


def set_threads(board: LeasedBoard) -> str:
    """Set the number of threads for kernels to what the options ask; returns why that failed, or ""."""
    wanted = int(_options.get("threads", 0))
    if not wanted:
        return ""
    try:
        own = board.function(board_functions.SET_THREADS)
        if own is not None:
            own(wanted)
            return ""
        count = board.function("runtime.NumThreads")
        threads = wanted if count is None else int(count())
    except Exception as error:
        if FROM_THE_BOARD not in str(error):
            raise
        return brief(error)
    if threads == wanted:
        return ""
    return (
        f"TVM computes with {threads} threads there instead of {wanted}, which its own server cannot "
        f"change: start it with TVM_NUM_THREADS={wanted}, or use tvmtune serve"
    )


def with_board(function: Callable[..., Any]) -> Callable[..., Result]:
    """Call ``function`` with the board that this process keeps, before its other arguments; returns a
    :data:`Result` instead of raising."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Result:
        if _board is None:
            return "lost", "there is no session with a board"
        try:
            return "value", function(_board, *arguments)
        except Exception as error:
            kind = _kind(_board, str(error))
            return kind, "the connection broke" if kind == "lost" else _message(error)

    return call


def _kind(board: LeasedBoard, text: str) -> Kind:
    if DIED in text:
        return "crash"
    if _EXPIRED in text:
        return "timeout"
    if RESTARTED in text:
        return "lost"
    return "run" if FROM_THE_BOARD in text or board.answers() else "lost"


def _message(error: Exception) -> str:
    text = str(error)
    if DIED in text:
        return text[text.index(DIED) :].splitlines()[0].rstrip("'\" ")
    return brief(error)


@with_board
def provide(board: LeasedBoard, module: str) -> None:
    """Have the board import ``module`` and call its ``register``; does nothing with TVM's server."""
    function = board.function("tvmtune.board.provide")
    if function is not None:
        function(module)


def tensors(arrays: Sequence[np.ndarray], device: Any) -> list[Any]:
    """Copies of ``arrays`` on a board's device."""
    import numpy as np
    import tvm

    # Not ascontiguousarray, which turns a scalar into a vector.
    return [tvm.runtime.tensor(np.asarray(array, order="C"), device) for array in arrays]
