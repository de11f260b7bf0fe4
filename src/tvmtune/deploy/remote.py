"""Libraries, and the runtimes that they are compared with, on a board over TVM's RPC.

The session with the board is in a process of its own that is killed when an answer is overdue: a
client of TVM's RPC may hang for ever. Times are taken on the board, by its own clock. Boards that
``tvmtune serve`` serves say what they are, and run :mod:`tvmtune.deploy.on_board`; with those of TVM's
own server, what a library needs is found out when it is loaded, and there are no runtimes to compare
with.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtune.deploy import board_calls, metadata, on_board
from tvmtune.deploy.peers import PEERS, Peer, choose, words
from tvmtune.deploy.peers.base import onnx_form
from tvmtune.errors import MEMORY, TvmtuneError, UsageError
from tvmtune.farm import devices, protocol
from tvmtune.farm.lending import (
    CONNECT,
    INIT,
    OVERHEAD,
    RELEASE,
    SLOW_LINE,
    Result,
    describe,
)
from tvmtune.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np

    from tvmtune.deploy.session import KernelTime
    from tvmtune.types import JSON, Network

WAIT = 60.0
"""Seconds to wait for a board that is in use."""
RUN = 300.0
"""Seconds that one call may take."""
SLACK = 4.0
"""Times as long as the slowest call so far that several may take each."""
START = 120.0
"""Seconds that a process of this machine may take to import TVM."""
LOOK = 5.0
"""Seconds between two looks at whether a board at work is still there."""
STRIKES = 3
"""Looks in a row that find nobody, from which on it counts as lost."""


class Borrowed:
    """A board that is lent to this process until it is closed."""

    def __init__(
        self,
        remote: str,
        *,
        wait: float | None = None,
        say: Callable[[str], None] = lambda message: None,
        known: bool = False,
    ) -> None:
        """Borrow a board of ``KEY`` or ``KEY@HOST:PORT``, and wait up to ``wait`` seconds
        (:data:`WAIT` by default) for one that is in use; ``say`` hears of that. If such boards are
        ``known``, those that have gone may come back in that time, and so may the tracker.

        Raises :class:`TvmtuneError` if there is none, or if it cannot be reached.
        """
        self.key, tracker = protocol.find(remote)
        self.described: JSON | None = None
        """What it says of itself; None where TVM's own server serves it."""
        wait = WAIT if wait is None else wait
        end = time.monotonic() + (wait if known else 0.0)
        _check_known(self.key, tracker, end, say)
        self._worker = Worker(init=INIT)
        try:
            # The process first: a board that is lent is offered anew if nobody comes for seconds.
            self._worker.call(RELEASE, (), START)
            self.address, match = _request(self.key, tracker, wait, say)
            arguments = (str(self.address), match, 0.0)
            outcome = self._worker.call(CONNECT, arguments, OVERHEAD + devices.PROBE)
            if not outcome.ok:
                why = "it does not answer" if outcome.stage == "timeout" else outcome.message
                raise TvmtuneError(f"the board '{self.key}' cannot be reached: {why}")
            if outcome.value:
                raise TvmtuneError(f"the board '{self.key}': {outcome.value}")
            self.described = self.ask(describe, limit=OVERHEAD)
            self.ask(board_calls.provide, limit=OVERHEAD + devices.PROBE)
        except BaseException:
            self.close()
            raise

    @property
    def model(self) -> str:
        """Its processor, or its key where it does not tell."""
        return str((self.described or {}).get("cpu") or f"the board '{self.key}'")

    def ask(self, function: Callable[..., Result], *arguments: Any, limit: float) -> Any:
        """What a function that :func:`tvmtune.farm.lending.with_board` marks returns, within ``limit``
        seconds.

        Raises :class:`TvmtuneError` for whatever goes wrong.
        """
        with self._watched() as gone:
            name = f"{function.__module__}:{function.__name__}"
            outcome = self._worker.call(name, arguments, limit)
        if gone.is_set():
            raise self._lost("it does not answer any more")
        if outcome.stage == "timeout":
            raise TvmtuneError(
                f"the board '{self.key}' did not answer within {limit:.0f} s. Is it frozen, or the "
                "line too slow? See tvmtune devices --probe."
            )
        if not outcome.ok:
            raise TvmtuneError(f"the board '{self.key}': {outcome.message}")
        kind, value = outcome.value
        if kind == "value":
            return value
        if kind == "crash":
            raise self._crashed(str(value))
        if kind == "lost":
            raise self._lost(str(value))
        raise TvmtuneError(self._told(str(value)))

    def close(self) -> None:
        """Give the board back."""
        self._worker.close()

    def __enter__(self) -> Borrowed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _watched(self) -> Iterator[threading.Event]:
        """Look meanwhile whether the board is there; the event is set if it is lost.

        TVM's own server answers nobody while a session runs: of such a board nothing is known.
        """
        gone, done = threading.Event(), threading.Event()

        def look() -> None:
            strikes = 0
            while strikes < STRIKES:
                if done.wait(LOOK):
                    return
                strikes = 0 if protocol.is_alive(self.address) else strikes + 1
            gone.set()
            self._worker.close()

        watcher = threading.Thread(target=look, name="board", daemon=True)
        if self.described is not None:
            watcher.start()
        try:
            yield gone
        finally:
            done.set()

    def _lost(self, why: str) -> TvmtuneError:
        return TvmtuneError(
            f"the board '{self.key}' at {self.address} was lost: {why}. Is it on, and its server "
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

    def _told(self, message: str) -> str:
        """One message for what the board's side complained of."""
        found = f"on the board '{self.key}': {message}"
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
                return f"{found.rstrip('.')}. {remedy}{memory}"
        return found

    def _memory(self) -> str:
        free = int((self.described or {}).get("free_bytes") or 0)
        return f": {free / 1e6:.0f} MB were free" if free else ""


def _check_known(
    key: str, tracker: protocol.Address, end: float, say: Callable[[str], None]
) -> None:
    """Raise :class:`Unreachable` if there is no such board by ``end``."""
    told = False
    while True:
        try:
            with protocol.Tracker(tracker) as line:
                devices.check_known(line, key)
            return
        except protocol.Unreachable as error:
            left = end - time.monotonic()
            if left <= 0:
                raise
            if not told:
                say(f"waiting for a board '{key}', up to {left:.0f} s: {error}")
            told = True
            time.sleep(min(LOOK, left))


def _request(
    key: str, tracker: protocol.Address, wait: float, say: Callable[[str], None]
) -> tuple[protocol.Address, str]:
    """A board's address, and the key that it expects."""
    with protocol.Tracker(tracker) as line:
        if not any(row.free for row in devices.queues(line) if row.key == key):
            say(f"all boards '{key}' are in use: waiting up to {wait:.0f} s")
        found = line.request(key, wait)
    if found is None:
        raise TvmtuneError(
            f"no board '{key}' became free within {wait:.0f} s: all are in use. Wait longer with "
            "--wait, or see tvmtune devices."
        )
    return found


class _Pace:
    """How long calls may take, from how long they took."""

    def __init__(self) -> None:
        self._longest = 0.0

    def limit(self, count: int) -> float:
        """Seconds for ``count`` calls: at least those of a turn, and several times what is expected."""
        return RUN + SLACK * count * self._longest

    def seen(self, seconds: float, count: int) -> float:
        self._longest = max(self._longest, seconds / count)
        return seconds


class RemoteSession:
    """Implements :class:`tvmtune.deploy.session.Session` on a board."""

    def __init__(
        self, path: Path, described: JSON, board: Borrowed, threads: int | None = None
    ) -> None:
        """Upload the library at ``path``, which is for such a board, and load it.

        ``described`` are its metadata. ``threads``: by default as many as it was tuned for, or as the
        board has if these are fewer. Raises :class:`TvmtuneError` if the board cannot load it,
        :class:`UsageError` if it has not so many CPUs.
        """
        self.board: Borrowed | None = board
        self._board = board
        self._pace = _Pace()
        told = board.described or {}
        count = int(told.get("cpus") or 0)
        if threads is not None and not 1 <= threads <= (count or threads):
            raise UsageError(
                f"the number of threads must be from 1 to {count}, the CPUs of the board "
                f"'{board.key}', not {threads}"
            )
        size, free = path.stat().st_size, int(told.get("free_bytes") or 0)
        if 0 < free < size:
            raise TvmtuneError(
                f"the board '{board.key}' has {free / 1e6:.0f} MB of memory free, and {path} alone is "
                f"{size / 1e6:.0f} MB. End what else runs there, or take another board"
            )
        tuned = int(described["threads"])
        wanted = threads or (min(tuned, count) if count else tuned)
        device = described["device"]
        runtime = metadata.runtime(described)
        backend = device["backend"] if device.get("needs_init") else ""
        limit = size / SLOW_LINE + RUN
        self._name: int
        self._name, self.threads = board.ask(
            board_calls.open_library, str(path), runtime, wanted, backend, limit=limit
        )

    def set_inputs(self, arrays: Sequence[np.ndarray]) -> None:
        limit = _bytes(arrays) / SLOW_LINE + OVERHEAD
        self._board.ask(board_calls.set_inputs, self._name, list(arrays), limit=limit)

    def invoke(self, count: int = 1) -> float:
        limit = self._pace.limit(count)
        seconds = self._board.ask(board_calls.invoke, self._name, count, limit=limit)
        return self._pace.seen(float(seconds), count)

    def outputs(self) -> list[np.ndarray]:
        found: list[np.ndarray] = self._board.ask(board_calls.outputs, self._name, limit=RUN)
        return found

    def device_seconds(self, count: int) -> float | None:
        return None  # boards are timed by the wall clock alone

    def rest(self) -> None:
        self._board.ask(board_calls.rest, limit=RUN)

    def profile(self, repeat: int) -> list[KernelTime]:
        raise TvmtuneError("a library on a board cannot be profiled: TVM's RPC has no hook there")


class RemotePeer(Peer):
    """A runtime that the board has installed, in turns with a library on that board."""

    package = ""

    def __init__(self, name: str, board: Borrowed) -> None:
        self.name = name  # type: ignore[misc]
        self.parallel = PEERS[name].parallel  # type: ignore[misc]
        self._board = board
        self._pace = _Pace()
        self._version = ""

    @property
    def version(self) -> str:
        return self._version

    def available(self) -> str | None:
        if self._board.described is None:
            return f"{self.name} is left out: on the board, tvmtune serve is needed for it"
        reason = self._ask(board_calls.peer_installed, limit=RUN)
        return f"on the board '{self._board.key}': {reason}" if reason else None

    def load(self, network: Network, threads: int) -> None:
        with tempfile.TemporaryDirectory(prefix="tvmtune-") as folder:
            path = Path(folder) / "network.onnx"
            path.write_bytes(onnx_form(network))
            limit = path.stat().st_size / SLOW_LINE + RUN
            sent = on_board.Sent.describe(network)
            self._version = self._ask(board_calls.peer_load, sent, str(path), threads, limit=limit)
        self._order = [spec.name for spec in network.inputs]

    def set_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        arrays = [inputs[name] for name in self._order]
        limit = _bytes(arrays) / SLOW_LINE + OVERHEAD
        self._ask(board_calls.peer_set_inputs, arrays, limit=limit)

    def invoke(self, count: int = 1) -> float:
        seconds = self._ask(board_calls.peer_invoke, count, limit=self._pace.limit(count))
        return self._pace.seen(float(seconds), count)

    def outputs(self) -> list[np.ndarray]:
        found: list[np.ndarray] = self._ask(board_calls.peer_outputs, limit=RUN)
        return found

    def _ask(self, function: Callable[..., Result], *arguments: Any, limit: float) -> Any:
        return self._board.ask(function, self.name, *arguments, limit=limit)


def peers(names: str, board: Borrowed) -> list[Peer]:
    """As :func:`tvmtune.deploy.peers.parse`, on the board; ``all`` adds those that it has installed."""
    return choose(words(names), {name: RemotePeer(name, board) for name in PEERS})


def _bytes(arrays: Sequence[np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays)
