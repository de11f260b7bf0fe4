"""Borrowing a board, and a session with it in a process that may be killed.

A client of TVM's RPC may hang for ever, and hold Python's lock while it does. So a process of its own
(:mod:`tvmtune.workers`) keeps the board: :func:`ensure`, functions that are marked :func:`with_board`,
:func:`release`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from tvmtune.farm.nursery import DIED
from tvmtune.farm.protocol import Address, Tracker, Unreachable
from tvmtune.workers import brief

Result = tuple[str, Any]

INIT, ENSURE, RELEASE, DESCRIBE = (
    f"{__name__}:{function}" for function in ("init", "ensure", "release", "describe")
)
"""For :class:`tvmtune.workers.Workers`."""
SLOW_LINE = 200e3
"""Bytes per second that an upload has to make."""
OVERHEAD = 20.0
"""Seconds that a call may take beyond its work and its upload: messages, and the board's memory."""

_BROKEN = re.compile(
    r"connection (was )?(reset|closed|refused|aborted)|broken pipe|socket error|timed out"
    r"|not connected|no route|unreachable|transport endpoint|Close the connection",
    re.IGNORECASE,
)
"""How TVM's RPC and the system say that the other side is gone."""

_options: dict[str, Any] = {}
_board: Board | None = None


class Board:
    """A board that has been lent, with a session open."""

    def __init__(self, address: Address, session: Any) -> None:
        self.address = address
        self.session = session

    def function(self, name: str) -> Any | None:
        """A function of the board's, or None if it has none of that name."""
        try:
            return self.session.get_function(name)
        except Exception as error:
            if _BROKEN.search(str(error)):
                raise
            return None

    def close(self) -> None:
        """End the session; everything of the board's that is still held becomes invalid."""
        self.session = None
        gc.collect()


def lend(tracker: Address, key: str, wait: float) -> Board | None:
    """A board of that key, or None if none became free within ``wait`` seconds.

    Raises :class:`Unreachable` if the tracker, or every board that it named, is.
    """
    from tvm import rpc

    with Tracker(tracker) as line:
        found = line.request(key, wait)
    if found is None:
        return None
    address, match = found
    try:
        return Board(address, rpc.connect(address.host, address.port, match))
    except Exception as error:
        raise Unreachable(f"the board '{key}' at {address} cannot be reached: {brief(error)}") from None


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
    """Called once in each process."""
    global _options
    _options = options


def ensure(tracker: str, key: str, wait: float) -> str | None:
    """Have a board; its address, or None if none is to be had now."""
    global _board
    if _board is None:
        with contextlib.suppress(Unreachable):
            _board = lend(Address.parse(tracker), key, wait)
        if _board is not None and _options.get("threads"):
            # -1: TVM's mode for the quick cores of a board that has slow ones as well
            _board.session.get_function("runtime.config_threadpool")(
                int(_options.get("cores", -1)), int(_options["threads"])
            )
    return None if _board is None else str(_board.address)


def release() -> None:
    """Give the board back."""
    global _board
    board, _board = _board, None
    if board is not None:
        board.close()


def with_board(function: Callable[..., Any]) -> Callable[..., Result]:
    """Have ``function`` called with the board that this process keeps, before its other arguments.

    The pair that comes back is ``("value", result)``, or the kind of failure and its message: ``"run"``,
    the call failed and the session goes on; ``"crash"``, the board's process died of it; ``"lost"``, the
    connection broke.
    """

    @functools.wraps(function)
    def call(*arguments: Any) -> Result:
        if _board is None:
            return "lost", "there is no session with a board"
        try:
            return "value", function(_board, *arguments)
        except Exception as error:
            text = str(error)
            if DIED in text:
                how = text[text.index(DIED) :].splitlines()[0]
                return "crash", how.rstrip("'\" ")
            return ("lost" if _BROKEN.search(text) else "run"), brief(error)

    return call


@with_board
def describe(board: Board) -> dict[str, Any] | None:
    """What the board says of itself; None where TVM's own server serves it."""
    function = board.function("tvmtune.board.describe")
    return None if function is None else json.loads(str(function()))
