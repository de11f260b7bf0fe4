"""A pool of boards that take calls from one queue.

Each board takes the next call as soon as it is free.

It has the interface of :class:`tvmtune.workers.Workers`. There is one :class:`BoardWorker` for each
board that the tracker lists under the key; workers come and go while tuning runs. A worker leases one
board at a time and makes one call at a time, in a process of this machine that is killed at its
deadline, whatever the board does: a client of TVM's RPC may hang forever.

Failures are told apart:

- the board's process died during the call, and its server says so: a ``crash`` of that call;
- the call took too long, and the board's server still answers: a ``timeout`` of that call;
- the board is gone or frozen: the call waits for another board and is not blamed, unless it happens
  to the same call a second time.

One lock guards the queue, the list of workers and the state of the boards. A call is queued, held by
one worker, or resolved; a worker takes a call only when it has a board, and always resolves it or
puts it back.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from typing import Any

from tvmtune.errors import TvmtuneError
from tvmtune.machine import board_identity
from tvmtune.measure.board_worker import BoardWorker, Call
from tvmtune.remote import protocol
from tvmtune.remote.client import boards
from tvmtune.remote.protocol import Address, Tracker, Unreachable
from tvmtune.types import JSON
from tvmtune.workers import Outcome, brief, gather

POLL_INTERVAL = 2.0
"""Seconds between two queries of the tracker."""
IDLE = 5.0
"""Seconds after which a board without work is given back."""
WAIT = 600.0
"""Seconds without any board after which the run ends."""
NOTICE_AFTER = 8.0
"""Seconds without a board after which the user is told."""


class NoBoard(TvmtuneError):
    """No board came within the time that the user allows."""


class BoardPool:
    """Calls functions by name on boards of ``key``.

    Functions are those marked by :func:`tvmtune.remote.client.board_client.with_board`. ``wait``:
    seconds that calls wait while there is no board at all. ``report`` receives messages about boards
    that come, go and are waited for, in any thread. ``options`` are for
    :func:`tvmtune.remote.client.board_client.init`. ``identity``: that of the boards
    (:mod:`tvmtune.machine.board_identity`), by default that of the first. Raises
    :class:`Unreachable` if there is no tracker, or no board of that key.
    """

    def __init__(
        self,
        key: str,
        tracker: Address,
        *,
        wait: float = WAIT,
        report: Callable[[str], None] = lambda message: None,
        options: dict[str, Any] | None = None,
        directory: Path | None = None,
        identity: JSON | None = None,
    ) -> None:
        self.key = key
        self.tracker = tracker
        self.wait = wait
        self._report = report
        self.options = dict(options or {})
        self.directory = directory
        self._changed = threading.Condition()
        self._calls: deque[Call] = deque()
        self._workers: list[BoardWorker] = []
        self._own: set[Address] = set()
        """Boards that ``tvmtune serve`` serves."""
        self._listed: set[Address] = set()
        self._unusable: set[Address] = set()
        """Boards that cannot be used, and that the user was told about."""
        self._expected = board_identity.Expected(identity or {}, board_identity.PLANNED)
        self._failure = ""
        """Why the last lease failed."""
        self._waiting = False
        """Whether the user was told that the run waits for boards."""
        self._closed = False
        with Tracker(tracker) as connection:
            boards.check_known(connection, key)
            self._update(connection.summary())
        self._watcher = threading.Thread(target=self._watch, name="boards", daemon=True)
        self._watcher.start()

    def submit(self, function: str, call: tuple[Any, ...], deadline: float) -> Future[Outcome]:
        """Queue ``function(*call)``; the handle is for :meth:`collect`."""
        queued = Call(function, call, deadline)
        with self._changed:
            self._calls.append(queued)
            self._changed.notify_all()
        return queued.future

    def map(
        self,
        function: str,
        calls: Sequence[tuple[Any, ...]],
        *,
        deadline: float,
        stage: str,
        on_result: Callable[[int, Outcome], None] | None = None,
    ) -> list[Outcome]:
        """As :meth:`tvmtune.workers.Workers.map`."""
        handles = [self.submit(function, call, deadline) for call in calls]
        return self.collect(handles, deadline=deadline, stage=stage, on_result=on_result)

    def collect(
        self,
        handles: Sequence[Future[Outcome]],
        *,
        deadline: float,
        stage: str,
        on_result: Callable[[int, Outcome], None] | None = None,
    ) -> list[Outcome]:
        """As :meth:`tvmtune.workers.Workers.collect`; raises :class:`NoBoard` if no board came."""

        def drop() -> None:
            unwanted = set(handles)
            with self._changed:
                self._calls = deque(c for c in self._calls if c.future not in unwanted)

        return gather(handles, lambda handle: handle.result(), on_result, drop)

    def close(self) -> None:
        """End the workers at once; their boards notice."""
        with self._changed:
            self._closed = True
            workers, self._workers = self._workers, []
            self._changed.notify_all()
        for worker in workers:
            worker.kill()
        for thread in (*workers, self._watcher):
            thread.join(timeout=protocol.REPLY_TIMEOUT)

    def __enter__(self) -> BoardPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def report(self, message: str) -> None:
        """Tell the user. A failure to do so must not end a thread that work depends on."""
        with contextlib.suppress(Exception):
            self._report(message)

    # For board workers; see board_worker.Pool.

    def wait_for_calls(self, worker: BoardWorker) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._calls or worker not in self._workers)
            return worker in self._workers

    def has_work_for(self, worker: BoardWorker) -> bool:
        with self._changed:
            return bool(self._calls) and worker in self._workers

    def is_needed(self, worker: BoardWorker) -> bool:
        with self._changed:
            return worker in self._workers

    def next_call(self, worker: BoardWorker) -> Call | None:
        with self._changed:
            self._changed.wait_for(lambda: self._calls or worker not in self._workers, IDLE)
            return self._calls.popleft() if self._calls and worker in self._workers else None

    def put_back(self, call: Call) -> None:
        with self._changed:
            self._calls.appendleft(call)
            self._changed.notify_all()

    def longest_limit(self) -> float:
        with self._changed:
            return max((call.limit(own=False) for call in self._calls), default=0.0)

    def is_own(self, board: Address) -> bool:
        with self._changed:
            return board in self._own

    def leased(self) -> None:
        with self._changed:
            self._failure = ""
            again, self._waiting = self._waiting, False
        if again:
            self.report(f"a board '{self.key}' is available again")

    def lease_failed(self, reason: str) -> None:
        with self._changed:
            self._failure = reason

    def unlike(self, board: Address, description: JSON | None) -> str:
        with self._changed:
            return self._expected.trouble(description, str(board), self.key)

    def board_unusable(self, board: Address, reason: str) -> None:
        with self._changed:
            reported, self._unusable = board in self._unusable, self._unusable | {board}
        if not reported:
            self.report(f"the board '{self.key}' at {board} cannot be used: {reason}")

    def board_lost(self, board: Address, reason: str) -> None:
        self.report(
            f"the board '{self.key}' at {board} is lost ({reason}): its work waits for another"
        )

    # The watcher's thread.

    def _watch(self) -> None:
        """Keep a worker for each listed board, and give up if there has been no board for too long."""
        without: float | None = None
        """Since when calls wait and no worker has a board."""
        while True:
            trouble = ""
            try:
                with Tracker(self.tracker) as connection:
                    self._update(connection.summary())
            except Unreachable as error:
                trouble = str(error)
            except Exception as error:  # every caller depends on this thread
                trouble = f"looking for boards at {self.tracker} failed: {brief(error)}"
            with self._changed:
                if self._closed:
                    return
                now = time.monotonic()
                if not self._calls or any(worker.board is not None for worker in self._workers):
                    without = None
                elif without is None:
                    without = now
                waited = 0.0 if without is None else now - without
                reason = trouble or self._why_none()
                announce = waited > min(NOTICE_AFTER, self.wait) and not self._waiting
                self._waiting |= announce
                if waited > self.wait:
                    self._give_up(reason)
                    without = None
            if announce:
                self.report(f"waiting for a board '{self.key}', up to {self.wait:.0f} s: {reason}")
            with self._changed:
                if self._changed.wait_for(lambda: self._closed, POLL_INTERVAL):
                    return

    def _update(self, summary: dict[str, Any]) -> None:
        """Store what the tracker lists, and adjust the number of workers."""
        listed = boards.servers(summary).get(self.key, [])
        own = {
            a for addresses in boards.servers(summary, protocol.OURS).values() for a in addresses
        }
        with self._changed:
            come, gone = set(listed) - self._listed, self._listed - set(listed)
            self._listed, self._own = set(listed), own
            # One worker always stays: it is the first to notice that a board is back.
            wanted = max(1, len(listed))
            while len(self._workers) < wanted and not self._closed:
                self._workers.append(BoardWorker(self))
                self._workers[-1].start()
            idle = [worker for worker in self._workers if worker.board is None]
            for worker in idle[: max(0, len(self._workers) - wanted)]:
                self._workers.remove(worker)
            self._changed.notify_all()
        changes = [f"{board} joined" for board in sorted(come, key=str)]
        changes += [f"{board} left" for board in sorted(gone, key=str)]
        if changes:
            self.report(f"boards '{self.key}': {', '.join(changes)}; now {len(listed)}")

    def _why_none(self) -> str:
        if not self._listed:
            return f"none is registered with the tracker at {self.tracker}"
        return self._failure or "all of them are in use, or do not answer"

    def _give_up(self, reason: str) -> None:
        error = NoBoard(
            f"no board '{self.key}' was available for {self.wait:.0f} s: {reason.rstrip('.')}. See "
            "tvmtune devices; --wait gives boards more time to come back."
        )
        while self._calls:
            with contextlib.suppress(InvalidStateError):
                self._calls.popleft().future.set_exception(error)
