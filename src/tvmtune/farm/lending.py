"""Borrowing a board, and a session with it in a process that may be killed.

A client of TVM's RPC may hang for ever, and hold Python's lock while it does. So a process of its own
(:mod:`tvmtune.workers`) keeps the board: :func:`ensure` or :func:`connect`, functions that are marked
:func:`with_board`, :func:`release`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
from collections.abc import Callable, Iterator
from typing import Any

from tvmtune.farm import functions
from tvmtune.farm.nursery import DIED
from tvmtune.farm.protocol import Address, Tracker, Unreachable
from tvmtune.farm.sessions import RESTARTED
from tvmtune.workers import brief

Result = tuple[str, Any]

INIT, ENSURE, CONNECT, RELEASE, DESCRIBE = (
    f"{__name__}:{function}" for function in ("init", "ensure", "connect", "release", "describe")
)
"""For :mod:`tvmtune.workers`."""
SLOW_LINE = 200e3
"""Bytes per second that an upload has to make."""
OVERHEAD = 10.0
"""Seconds that a call may take beyond its work and its upload: messages, and the board's memory."""

FROM_THE_BOARD = "Error caught from RPC call"
"""So begins, in TVM's RPC, what the board's side has raised: the line holds."""
_EXPIRED = "RPCSessionTimeoutError"
"""What a server tells a client whose session has lasted for as long as it had asked for."""
_options: dict[str, Any] = {}
_board: Board | None = None


class Board:
    """A board that has been lent, with a session open."""

    def __init__(self, address: Address, session: Any) -> None:
        self.address = address
        self.session = session
        self.held: dict[str, Any] = {}
        """What functions keep on the board from call to call; it keeps the session alive."""
        self._functions: dict[str, Any] = {}

    def function(self, name: str) -> Any | None:
        """A function of the board's, or None if it has none of that name."""
        if name not in self._functions:
            try:
                self._functions[name] = self.session.get_function(name)
            except AttributeError:
                self._functions[name] = None
        return self._functions[name]

    def answers(self) -> bool:
        """Whether the session goes on. TVM's errors do not tell: each way in which a line breaks has
        another one."""
        try:
            self.session.get_function("tvm.rpc.server.workpath")
        except Exception as error:
            return isinstance(error, AttributeError) or FROM_THE_BOARD in str(error)
        return True

    def close(self) -> None:
        """End the session."""
        self.held, self._functions, self.session = {}, {}, None
        gc.collect()


def lend(tracker: Address, key: str, wait: float) -> Board | None:
    """A board of that key, or None if none became free within ``wait`` seconds.

    Raises :class:`Unreachable` if the tracker, or the board that it named, is.
    """
    with Tracker(tracker) as line:
        found = line.request(key, wait)
    return None if found is None else _open(*found)


def _open(address: Address, match: str, limit: float = 0.0) -> Board:
    """A session with a board that knows ``match``; its server ends it after ``limit`` seconds, if
    that is not 0."""
    from tvm import rpc

    try:
        return Board(address, rpc.connect(address.host, address.port, match, session_timeout=limit))
    except Exception as error:
        raise Unreachable(f"the board at {address} cannot be reached: {brief(error)}") from None


@contextlib.contextmanager
def borrow(tracker: Address, key: str, wait: float) -> Iterator[Board]:
    """:func:`lend` for a while; raises :class:`Unreachable` where none is to be had."""
    board = lend(tracker, key, wait)
    if board is None:
        raise Unreachable(f"no board '{key}' became free within {wait:g} s: all are in use")
    try:
        yield board
    finally:
        board.close()


def init(options: dict[str, Any]) -> None:
    """Called once in each process. ``options["threads"]``: how many compute on the board."""
    global _options
    _options = options


def ensure(tracker: str, key: str, wait: float) -> str | None:
    """Have a board; its address, or None if none is to be had now."""
    global _board
    if _board is None:
        with contextlib.suppress(Unreachable):
            _board = lend(Address.parse(tracker), key, wait)
        if _board is not None:
            settle(_board)
    return None if _board is None else str(_board.address)


def connect(address: str, match: str, limit: float) -> str:
    """Have the board that a tracker has lent, for ``limit`` seconds or, with 0, for as long as it
    takes; returns what is wrong with it, empty if nothing is."""
    global _board
    release()
    _board = _open(Address.parse(address), match, limit)
    return settle(_board) or version_trouble(_board)


def release() -> None:
    """Give the board back."""
    global _board
    board, _board = _board, None
    if board is not None:
        board.close()


def settle(board: Board) -> str:
    """Have kernels computed by as many threads as the options say; why they are not, if so."""
    threads = int(_options.get("threads", 0))
    if not threads:
        return ""
    try:
        own = board.function(functions.SETTLE)
        if own is not None:
            own(threads)
            return ""
        count = board.function("runtime.NumThreads")
        found = threads if count is None else int(count())
    except Exception as error:
        if FROM_THE_BOARD not in str(error):
            raise
        return brief(error)
    if found == threads:
        return ""
    return (
        f"TVM computes with {found} threads there instead of {threads}, which its own server cannot "
        f"change: start it with TVM_NUM_THREADS={threads}, or use tvmtune serve"
    )


def version_trouble(board: Board) -> str:
    """Why this machine's libraries do not fit the board's TVM, if so."""
    from tvmtune.farm import devices

    function = board.function("tvmtune.board.describe")
    return "" if function is None else devices.version_trouble(json.loads(str(function())))


def with_board(function: Callable[..., Any]) -> Callable[..., Result]:
    """Have ``function`` called with the board that this process keeps, before its other arguments.

    The pair that comes back is ``("value", result)``, or the kind of failure and its message:
    ``"run"``, the call failed and the session goes on; ``"crash"``, the board's process died of it;
    ``"timeout"``, the session was over before; ``"lost"``, the connection broke.
    """

    @functools.wraps(function)
    def call(*arguments: Any) -> Result:
        if _board is None:
            return "lost", "there is no session with a board"
        try:
            return "value", function(_board, *arguments)
        except Exception as error:
            kind = _kind(_board, str(error))
            return kind, "the connection broke" if kind == "lost" else _told(error)

    return call


def _kind(board: Board, text: str) -> str:
    if DIED in text:
        return "crash"
    if _EXPIRED in text:
        return "timeout"
    if RESTARTED in text:
        return "lost"
    return "run" if FROM_THE_BOARD in text or board.answers() else "lost"


def _told(error: Exception) -> str:
    text = str(error)
    if DIED in text:
        return text[text.index(DIED) :].splitlines()[0].rstrip("'\" ")
    return brief(error)


@with_board
def describe(board: Board) -> dict[str, Any] | None:
    """What the board says of itself; None where TVM's own server serves it."""
    function = board.function("tvmtune.board.describe")
    return None if function is None else json.loads(str(function()))
