"""Lease a board to run and bench libraries on it.

Boards that ``tvmtune serve`` serves describe themselves. Nothing is known of those that TVM's own
server serves until a library is loaded.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

from tvmtune.errors import MEMORY, TvmtuneError
from tvmtune.machine import board_identity
from tvmtune.remote import protocol
from tvmtune.remote.client import board_client, boards
from tvmtune.remote.client.board_client import OVERHEAD, Result
from tvmtune.remote.client.lease_process import (
    BoardUnusable,
    LeaseError,
    LeaseProcess,
    OtherBoard,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from tvmtune.types import JSON

WAIT = 60.0
"""Seconds to wait for a board that is in use."""
RUN = 300.0
"""Seconds that one call may take."""
SLACK = 4.0
"""The deadline of several calls, in times of the slowest call so far."""
OTHER_BOARD_PAUSE = 1.0
"""Seconds to pause after a board that does not suit the run."""
POLL_INTERVAL = 5.0
"""Seconds between two checks that a busy board still answers."""
MAX_FAILED_CHECKS = 3
"""Failed checks in a row after which the board counts as lost."""


class BoardLease:
    """A board that is leased until :meth:`close`."""

    def __init__(
        self,
        remote: str,
        *,
        wait: float | None = None,
        report: Callable[[str], None] = lambda message: None,
        known: bool = False,
        identity: JSON | None = None,
        source: str = board_identity.PLANNED,
    ) -> None:
        """Lease a board of ``KEY`` or ``KEY@HOST:PORT``.

        Waits up to ``wait`` seconds (:data:`WAIT` by default) for one that is in use, and tells
        ``report``. If such boards are ``known`` to exist, the same time is granted to boards that
        left, and to the tracker, to come back. With an ``identity``
        (:mod:`tvmtune.machine.board_identity`), only a board that has it is leased; ``source`` says
        where it is known from. Raises :class:`TvmtuneError` if there is none, or it cannot be reached.
        """
        self.key, tracker = protocol.split_remote(remote)
        self._provided: set[str] = set()
        self._expected = board_identity.Expected(identity or {}, source)
        self._known = known
        wait = WAIT if wait is None else wait
        end = time.monotonic() + (wait if known else 0.0)
        _wait_until_known(self.key, tracker, end, report)

        self._process = LeaseProcess()
        try:
            self.address = self._lease(tracker, wait, report)
        except BaseException:
            self.close()
            raise
        self.described: JSON | None = self._process.description
        """The board's description of itself; None if TVM's own server serves it."""

    def _lease(
        self, tracker: protocol.Address, wait: float, report: Callable[[str], None]
    ) -> protocol.Address:
        def on_busy() -> None:
            report(f"all boards '{self.key}' are in use: waiting up to {wait:.0f} s")

        def unlike(board: protocol.Address, description: JSON | None) -> str:
            return self._expected.trouble(description, str(board), self.key)

        end = time.monotonic() + wait
        address: protocol.Address | None = None
        refused: dict[protocol.Address, str] = {}
        while address is None:
            left = max(0.0, end - time.monotonic())
            try:
                address = self._process.lease(
                    tracker, self.key, left, on_busy=on_busy, unlike=unlike
                )
            except OtherBoard as error:
                # The tracker grants the boards of a key in turns: the next may be the right one.
                if error.address not in refused:
                    report(
                        f"the board '{self.key}' at {error.address} cannot be used: {error.reason}"
                    )
                refused[error.address] = error.reason
                if not self._known and self._are_all(tracker, refused):
                    break
                time.sleep(OTHER_BOARD_PAUSE)
            except BoardUnusable as error:
                raise TvmtuneError(f"the board '{self.key}': {error.reason}") from None
            except LeaseError as error:
                raise TvmtuneError(f"the board '{self.key}' cannot be leased: {error}") from None
            if address is None and time.monotonic() > end:
                break
        if address is None and refused:
            raise TvmtuneError(f"the board '{self.key}': {[*refused.values()][-1]}")
        if address is None:
            raise TvmtuneError(
                f"no board '{self.key}' became free within {wait:.0f} s: all are in use. Wait longer "
                "with --wait, or see tvmtune devices."
            )
        return address

    def _are_all(self, tracker: protocol.Address, some: Collection[protocol.Address]) -> bool:
        """Whether the key has no other boards than these."""
        with protocol.Tracker(tracker) as connection:
            return set(boards.servers(connection.summary()).get(self.key, ())) <= set(some)

    @property
    def model(self) -> str:
        """Its processor, or its key if the processor is unknown."""
        return str((self.described or {}).get("cpu") or f"the board '{self.key}'")

    def ask(self, function: Callable[..., Result], *arguments: Any, limit: float) -> Any:
        """Call a function marked by :func:`tvmtune.remote.client.board_client.with_board`, within
        ``limit`` seconds, and return its value.

        Raises :class:`TvmtuneError` for every failure.
        """
        with self._watched() as gone:
            name = f"{function.__module__}:{function.__name__}"
            reply = self._process.call(name, arguments, limit)
        if gone.is_set():
            raise self._lost("it does not answer any more")
        if reply.kind == "value":
            return reply.value
        if reply.kind == "overdue":
            raise TvmtuneError(
                f"the board '{self.key}' did not answer within {limit:.0f} s. Is it frozen, or the "
                "network too slow? See tvmtune devices --probe."
            )
        if reply.kind in ("unsent", "ended"):
            raise TvmtuneError(f"the board '{self.key}': {reply.message}")
        if reply.kind == "crash":
            raise self._crashed(reply.message)
        if reply.kind == "lost":
            raise self._lost(reply.message)
        raise TvmtuneError(self._with_remedy(reply.message))

    def provide(self, module: str) -> None:
        """Have the board register the functions of ``module``, once per lease."""
        if module not in self._provided:
            self.ask(board_client.provide, module, limit=OVERHEAD + boards.PROBE_TIMEOUT)
            self._provided.add(module)

    def close(self) -> None:
        """Give the board back."""
        self._process.close()

    def __enter__(self) -> BoardLease:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _watched(self) -> Iterator[threading.Event]:
        """Check meanwhile that the board is there; the event is set if it is lost.

        TVM's own server does not answer while a session runs, so such boards are not checked.
        """
        gone, done = threading.Event(), threading.Event()

        def look() -> None:
            missed = 0
            while missed < MAX_FAILED_CHECKS:
                if done.wait(POLL_INTERVAL):
                    return
                missed = 0 if protocol.is_alive(self.address) else missed + 1
            gone.set()
            self._process.close()

        watcher = threading.Thread(target=look, name="board", daemon=True)
        if self.described is not None:
            watcher.start()
        try:
            yield gone
        finally:
            done.set()

    def _lost(self, reason: str) -> TvmtuneError:
        return TvmtuneError(
            f"the board '{self.key}' at {self.address} was lost: {reason}. Is it on, and its server "
            "running? See tvmtune devices --probe."
        )

    def _crashed(self, how: str) -> TvmtuneError:
        remedy = ""
        if "SIGILL" in how:
            remedy = (
                ". The code uses instructions that its CPU lacks: compile it for that board "
                "(--target-attr board= or mcpu=)"
            )
        elif "SIGKILL" in how:
            remedy = f". Its memory is probably too small{self._memory()}"
        return TvmtuneError(f"on the board '{self.key}', {how}{remedy}")

    def _with_remedy(self, message: str) -> str:
        """An error of the board's, and what to do about it where that is known."""
        text = f"on the board '{self.key}': {message}"
        for signs, remedy in (
            (("No space left", "File too large", "Disk quota"), "Make room on its disk"),
            (MEMORY, "Its memory is too small"),
            (
                ("wrong ELF class", "Exec format", "cannot open shared object"),
                "Compile it for the board",
            ),
        ):
            if any(sign in message for sign in signs):
                memory = self._memory() if "memory" in remedy else ""
                return f"{text.rstrip('.')}. {remedy}{memory}"
        return text

    def _memory(self) -> str:
        free = int((self.described or {}).get("free_bytes") or 0)
        return f": {free / 1e6:.0f} MB were free" if free else ""


def _wait_until_known(
    key: str, tracker: protocol.Address, end: float, report: Callable[[str], None]
) -> None:
    """Raise :class:`Unreachable` if no such board is registered by ``end``."""
    reported = False
    while True:
        try:
            with protocol.Tracker(tracker) as connection:
                boards.check_known(connection, key)
            return
        except protocol.Unreachable as error:
            left = end - time.monotonic()
            if left <= 0:
                raise
            if not reported:
                report(f"waiting for a board '{key}', up to {left:.0f} s: {error}")
            reported = True
            time.sleep(min(POLL_INTERVAL, left))


class CallPace:
    """Deadlines for calls, from how long earlier calls took."""

    def __init__(self) -> None:
        self._longest = 0.0

    def limit(self, count: int) -> float:
        """Seconds for ``count`` calls: :data:`RUN`, plus :data:`SLACK` times what they should take."""
        return RUN + SLACK * count * self._longest

    def seen(self, seconds: float, count: int) -> float:
        self._longest = max(self._longest, seconds / count)
        return seconds
