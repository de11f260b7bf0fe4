"""A process of this machine that leases boards, one at a time, and makes calls with them.

Tuning (:mod:`tvmtune.measure.board_worker`) and benching (:mod:`tvmtune.remote.client.lease`) differ
in how long they wait and in what they do about a failure. What they share is here: the order in which
a board is leased, and the ways in which a call can end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tvmtune.errors import TvmtuneError
from tvmtune.remote.client import boards
from tvmtune.remote.client.board_client import CONNECT, INIT, OVERHEAD, RELEASE, Kind
from tvmtune.remote.protocol import Address, Tracker
from tvmtune.types import JSON
from tvmtune.workers import Worker

START_TIMEOUT = 120.0
"""Seconds that a process of this machine may take to start; the first one imports TVM."""
CONNECTING = 30.0
"""Seconds for a session to begin; slow boards need some for the fork."""


class LeaseError(TvmtuneError):
    """A board was leased but no session could be opened, or there is no process to open it in."""


class BoardUnusable(LeaseError):
    """The board at ``address`` answers, but its TVM does not fit this machine or this run."""

    def __init__(self, address: Address, reason: str) -> None:
        super().__init__(f"the board at {address} cannot be used: {reason}")
        self.address = address
        self.reason = reason


class OtherBoard(BoardUnusable):
    """The board is not equal to the others of this run; another one of its key may be."""


@dataclass(frozen=True)
class Reply:
    """How a call with a board ended.

    ``kind`` is one of :data:`~tvmtune.remote.client.board_client.Kind`, or ``"unsent"``: the call
    failed before it reached the board; ``"overdue"``: no answer came by the deadline, so the process
    here was killed; ``"ended"``: the process here died, or was closed.
    """

    kind: Kind | Literal["unsent", "overdue", "ended"]
    value: Any = None
    message: str = ""

    @property
    def keeps_session(self) -> bool:
        """Whether the session with the board goes on."""
        return self.kind in ("value", "run", "unsent")


class LeaseProcess:
    """Leases one board at a time. :meth:`close` is for any thread, everything else for one thread.

    ``options`` are those of :func:`tvmtune.remote.client.board_client.init`; what the process prints
    goes to a file in ``directory``.
    """

    def __init__(
        self, options: dict[str, Any] | None = None, directory: Path | None = None
    ) -> None:
        self._worker = Worker(init=INIT, options=options, directory=directory)
        self.address: Address | None = None
        """The leased board's, while the session lasts."""
        self.description: JSON | None = None
        """The board's description of itself; None if TVM's own server serves it."""
        self.session_limit = 0.0
        """Seconds after which the board's server ends the session; 0 for never."""
        self.calls = 0
        """Calls made since the process started."""

    def lease(
        self,
        tracker: Address,
        key: str,
        wait: float,
        *,
        wanted: Callable[[], bool] = lambda: True,
        on_busy: Callable[[], None] | None = None,
        session_limit: Callable[[Address], float] = lambda board: 0.0,
        unlike: Callable[[Address, JSON | None], str] = lambda board, description: "",
    ) -> Address | None:
        """Lease a board of ``key`` and open a session with it.

        Returns its address, or None if none became free within ``wait`` seconds or before ``wanted``
        turned false. ``on_busy`` is called if there is a wait. ``session_limit`` gives the board's
        :attr:`session_limit`. ``unlike`` says why a board with this description does not suit
        the run (:class:`~tvmtune.machine.board_identity.Expected`), or "".

        Raises :class:`~tvmtune.remote.protocol.Unreachable` if the tracker does not answer, and
        :class:`LeaseError` if there is no session.
        """
        # Start the process first: a board is offered to others if nobody connects within seconds.
        if not self._worker.call(RELEASE, (), START_TIMEOUT).ok:
            self.kill()
            raise LeaseError("this machine could not start a process")
        with Tracker(tracker) as connection:
            if on_busy is not None and not any(
                row.free for row in boards.queues(connection) if row.key == key
            ):
                on_busy()
            granted = connection.request(key, wait, wanted=wanted)
        if granted is None:
            return None
        board, match = granted
        limit = session_limit(board)
        outcome = self._worker.call(CONNECT, (str(board), match, limit), CONNECTING)
        if not outcome.ok:
            self.kill()
            if outcome.stage == "timeout":
                raise LeaseError(f"the board at {board} does not answer")
            raise LeaseError(outcome.message)
        trouble, description = outcome.value
        if trouble := trouble or boards.version_trouble(description):
            self._worker.call(RELEASE, (), OVERHEAD)
            raise BoardUnusable(board, trouble)
        if trouble := unlike(board, description):
            self._worker.call(RELEASE, (), OVERHEAD)
            raise OtherBoard(board, trouble)
        self.address, self.description, self.session_limit = board, description, limit
        return board

    def call(self, function: str, arguments: tuple[Any, ...], deadline: float) -> Reply:
        """Call a function marked by :func:`~tvmtune.remote.client.board_client.with_board`, named as
        ``"module:function"``. If the session does not survive the call, the process is killed."""
        self.calls += 1
        outcome = self._worker.call(function, arguments, deadline)
        if outcome.ok:
            kind, value = outcome.value
            reply = Reply("value", value) if kind == "value" else Reply(kind, message=str(value))
        elif outcome.stage == "run":
            reply = Reply("unsent", message=outcome.message)
        elif outcome.stage == "timeout":
            reply = Reply("overdue", message=outcome.message)
        else:
            reply = Reply("ended", message=outcome.message)
        if not reply.keeps_session:
            self.kill()
        return reply

    def release(self) -> None:
        """Give the board back and keep the process."""
        if self.address is not None:
            self.address = None
            if not self._worker.call(RELEASE, (), OVERHEAD).ok:
                self.kill()

    def kill(self) -> None:
        """End the process, and with it the session; the next lease starts another."""
        self.address = None
        self.calls = 0
        self._worker.kill()

    def close(self) -> None:
        """End the process for good."""
        self._worker.close()
