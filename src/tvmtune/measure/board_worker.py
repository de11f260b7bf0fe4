"""A thread that leases one board at a time, makes calls with it, and notices when the board is gone."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tvmtune.machine import faults
from tvmtune.remote import protocol
from tvmtune.remote.client.board_client import OVERHEAD, SLOW_LINE
from tvmtune.remote.client.lease_process import BoardUnusable, LeaseError, LeaseProcess, Reply
from tvmtune.remote.protocol import Address, Unreachable
from tvmtune.types import JSON, TensorSpec
from tvmtune.workers import Outcome

RETRY_PAUSE = 1.0
"""Seconds to pause after a board or the tracker could not be reached."""
UNUSABLE = 10.0
"""Seconds to pause after a board that cannot be used: the tracker may well grant it again."""
RECYCLE = 200
"""Calls after which session and process are replaced: both sides grow with what they load."""
LEASE_SECONDS = 60.0
"""Seconds after which a board is given back although there is work: another run may wait for it."""
DEADLINE_MARGIN = 5.0
"""Seconds by which this side waits longer than a server that ends the session by itself."""
REREQUEST_AFTER = 60.0
"""Seconds after which the tracker is asked again for a board: it may have vanished silently."""
MOST_LOST = 2
"""Boards that may be lost during one call before the call counts as failed."""


@dataclass(eq=False)
class Call:
    """A function to be called with a board, and its result."""

    function: str
    arguments: tuple[Any, ...]
    deadline: float
    """Seconds for the work itself."""
    future: Future[Outcome] = field(default_factory=Future)
    lost: int = 0
    """Boards that were lost during the call."""

    def limit(self, own: bool) -> float:
        """Seconds including the upload and, unless the board runs ``tvmtune serve`` (``own``), the
        tensors, which TVM's own server cannot fill by itself."""
        from tvmtune.arrays import nbytes

        size = 0
        for argument in self.arguments:
            if isinstance(argument, str):
                with contextlib.suppress(OSError):
                    size += Path(argument).stat().st_size
            elif isinstance(argument, list | tuple) and not own:
                size += sum(nbytes(spec) for spec in argument if isinstance(spec, TensorSpec))
        return self.deadline + size / SLOW_LINE + OVERHEAD

    def resolve(self, outcome: Outcome) -> None:
        with contextlib.suppress(InvalidStateError):  # cancelled meanwhile
            self.future.set_result(outcome)


class Pool(Protocol):
    """What a :class:`BoardWorker` needs: a queue of calls, and somewhere to report its board's state.

    No method blocks on anything but the pool's lock, except as stated.
    """

    key: str
    tracker: Address
    options: dict[str, Any]
    directory: Path | None

    def wait_for_calls(self, worker: BoardWorker) -> bool:
        """Wait until a call needs a board; False if ``worker`` should end."""

    def has_work_for(self, worker: BoardWorker) -> bool:
        """Whether calls wait, and ``worker`` should make them."""

    def is_needed(self, worker: BoardWorker) -> bool:
        """Whether ``worker`` should go on."""

    def next_call(self, worker: BoardWorker) -> Call | None:
        """The next call, after a short wait; None if there is none, or ``worker`` should end."""

    def put_back(self, call: Call) -> None:
        """Queue a call again that lost its board; it goes first."""

    def longest_limit(self) -> float:
        """The highest limit in seconds of the queued calls, on a board of TVM's own server."""

    def is_own(self, board: Address) -> bool:
        """Whether ``tvmtune serve`` serves the board."""

    def leased(self) -> None:
        """A board was leased, and it works."""

    def lease_failed(self, reason: str) -> None:
        """No board could be leased, or the one that was does not work."""

    def unlike(self, board: Address, description: JSON | None) -> str:
        """Why a board with this description does not suit the run, or ""."""

    def board_unusable(self, board: Address, reason: str) -> None:
        """The board cannot be used at all: the user should know."""

    def board_lost(self, board: Address, reason: str) -> None:
        """The board was lost during a call."""


class BoardWorker(threading.Thread):
    """Makes the calls of ``pool`` until it is no longer needed. Only this thread uses its session."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(name="board worker", daemon=True)
        self._pool = pool
        self._process = LeaseProcess(pool.options, pool.directory)

    @property
    def board(self) -> Address | None:
        """The leased board, while the session lasts."""
        return self._process.address

    def run(self) -> None:
        pool = self._pool
        try:
            while pool.wait_for_calls(self):
                try:
                    leased = self._lease()
                except Exception as error:  # a worker that ends is a board less
                    self._process.kill()
                    self._lease_failed(f"{type(error).__name__}: {error}")
                    continue
                if not leased:
                    continue
                end = time.monotonic() + LEASE_SECONDS
                while self.board is not None and (call := pool.next_call(self)) is not None:
                    if not self._make(call, self.board) or time.monotonic() > end:
                        break
                self._give_back()
        finally:
            self.kill()

    def kill(self) -> None:
        """End the process; for any thread."""
        self._process.close()

    def _lease(self) -> bool:
        """Whether there is a board now, with a session open."""
        pool = self._pool

        def session_limit(board: Address) -> float:
            # A server of ours notices that a client has left. TVM's own may stay stuck in an endless
            # call: it serves one call per session, and ends that by itself.
            return 0.0 if pool.is_own(board) else pool.longest_limit()

        try:
            board = self._process.lease(
                pool.tracker,
                pool.key,
                REREQUEST_AFTER,
                wanted=lambda: pool.has_work_for(self),
                session_limit=session_limit,
                unlike=pool.unlike,
            )
        except Unreachable:  # the pool's watcher sees that and reports it
            self._pause(RETRY_PAUSE)
            return False
        except BoardUnusable as error:
            pool.board_unusable(error.address, error.reason)
            self._lease_failed(str(error), UNUSABLE)
            return False
        except LeaseError as error:
            self._lease_failed(str(error))
            return False
        if board is None:
            return False
        pool.leased()
        return True

    def _lease_failed(self, reason: str, pause: float = RETRY_PAUSE) -> None:
        self._pool.lease_failed(reason)
        self._pause(pause)

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._pool.has_work_for(self):
            time.sleep(0.1)

    def _make(self, call: Call, board: Address) -> bool:
        """Make a call and resolve it, or put it back if the board was lost; returns whether the
        session can take another one."""
        session_limit = self._process.session_limit
        own = session_limit == 0.0
        limit = call.limit(own)
        if not own and limit > session_limit:
            self._pool.put_back(call)
            return False
        outcome: Outcome | None
        try:
            deadline = limit + (0.0 if own else DEADLINE_MARGIN)
            reply = self._process.call(call.function, call.arguments, deadline)
            outcome = self._outcome(call, board, reply)
        except Exception as error:  # the caller waits for an answer
            self._process.kill()
            outcome = Outcome(stage="run", message=f"{type(error).__name__}: {error}")
        if outcome is None:
            self._pool.put_back(call)
        else:
            call.resolve(outcome)
        return own and self._process.calls < RECYCLE

    def _outcome(self, call: Call, board: Address, reply: Reply) -> Outcome | None:
        """The outcome of a call, or None if it has to be made again."""
        if reply.kind == "value":
            return Outcome(value=reply.value)
        if reply.kind in ("run", "unsent"):
            return Outcome(stage="run", message=reply.message, fault=faults.of_text(reply.message))
        if reply.kind == "crash":
            killed = signal.SIGKILL.name in reply.message  # by the board's kernel, out of memory
            return Outcome(stage="crash", message=reply.message, fault="memory" if killed else "")
        reason = reply.message
        if reply.kind == "overdue":
            reason = "it does not answer"
        if reply.kind == "timeout" or (reply.kind == "overdue" and protocol.is_alive(board)):
            return Outcome(stage="timeout", message=f"killed after {call.deadline:g} s (run)")
        if reply.kind == "ended" and not self._pool.is_needed(self):
            return Outcome(stage="crash", message=reply.message)  # the run is over
        self._pool.board_lost(board, reason)
        call.lost += 1
        if call.lost < MOST_LOST:
            return None
        return Outcome(
            stage="crash",
            message=f"it took a board down {call.lost} times; the last: {reason}",
            fault="board",
        )

    def _give_back(self) -> None:
        if self._process.calls >= RECYCLE:
            self._process.kill()
        else:
            self._process.release()
