"""The supervisor's side of the forkserver: start it, order forks, track sessions.

The forkserver itself is forkserver_process.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tvmtune.errors import TvmtuneError
from tvmtune.remote.protocol import DIED, RESTARTED

START_TIMEOUT = 120.0
"""Seconds to import TVM; slow boards take 20."""
_LINE = 1 << 16
_PREFIX, _YOUNG = "tvmtune-board-", 60.0


class ForkedSession:
    """A forked session."""

    def __init__(self, pid: int, ended: asyncio.Future[str]) -> None:
        self.pid = pid
        self.ended = ended
        """Empty if it ended by itself, else the error for its client."""

    def kill(self) -> None:
        """Kill it, and whatever is left of its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


class SessionForkserver:
    """Controls the forkserver process; one call at a time. ``options``: see
    :func:`tvmtune.remote.server.session.prepare`."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._process: asyncio.subprocess.Process | None = None
        self._orders: socket.socket | None = None
        self._reader: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[dict[str, Any]] | None = None
        self._begun: asyncio.Future[ForkedSession] | None = None
        self._sessions: dict[int, ForkedSession] = {}
        self.versions: dict[str, str] = {}
        """TVM's versions, once the process has started."""

    async def __aenter__(self) -> SessionForkserver:
        await self.ensure_running()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def ensure_running(self) -> None:
        """Start the process if it is not running; raises :class:`TvmtuneError` if that fails."""
        if self._process is None or self._process.returncode is not None:
            await self._stop()
            try:
                await self._start()
            except BaseException:
                await self._stop()
                raise

    async def begin(self, connection: socket.socket) -> ForkedSession:
        """Fork a session that serves ``connection``; raises OSError if that is not possible."""
        await self.ensure_running()
        self._begun = asyncio.get_running_loop().create_future()
        self._send({"serve": True}, connection)
        return await asyncio.wait_for(self._begun, START_TIMEOUT)

    async def answer(self, connection: socket.socket, message: str) -> None:
        """Send the client of ``connection`` an error in place of its result."""
        with contextlib.suppress(OSError, TvmtuneError):
            await self.ensure_running()
            self._send({"answer": message}, connection)

    async def _start(self) -> None:
        mine, theirs = socket.socketpair()
        mine.setblocking(False)
        self._orders = mine
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                *(
                    sys.executable,
                    "-m",
                    "tvmtune.remote.server.forkserver_process",
                    str(theirs.fileno()),
                ),
                json.dumps(self._options | {"parent": os.getpid()}),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
            )
        self._ready = asyncio.get_running_loop().create_future()
        self._reader = asyncio.create_task(self._read(mine))
        try:
            first = await asyncio.wait_for(self._ready, START_TIMEOUT)
        except asyncio.TimeoutError:
            raise TvmtuneError(f"TVM could not be imported within {START_TIMEOUT:.0f} s.") from None
        if "ready" not in first:
            raise TvmtuneError(f"this machine cannot serve: {first['failed']}")
        self.versions = first["ready"]

    async def _stop(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
            self._reader = None
        for session in self._sessions.values():
            session.kill()
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        if self._orders is not None:
            self._orders.close()
            self._orders = None
        self._lost()
        self._process = None

    async def _read(self, orders: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        rest = b""
        with contextlib.suppress(OSError):
            while data := await loop.sock_recv(orders, _LINE):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._handle(json.loads(line))
        if self._process is not None:
            await self._process.wait()  # it is ending: ensure_running() must see that
        self._lost()

    def _handle(self, report: dict[str, Any]) -> None:
        if "begun" in report:
            session = ForkedSession(
                int(report["begun"]), asyncio.get_running_loop().create_future()
            )
            self._sessions[session.pid] = session
            _set_future(self._begun, session)
        elif "refused" in report:
            _set_future(self._begun, OSError(str(report["refused"])))
        elif "ended" in report:
            session = self._sessions.pop(int(report["ended"]))
            _set_future(session.ended, describe_end(int(report["status"])))
        else:
            _set_future(self._ready, report)

    def _lost(self) -> None:
        """Mark all sessions as ended: the forkserver is gone, and they with it."""
        for session in self._sessions.values():
            _set_future(session.ended, RESTARTED)
        self._sessions.clear()
        _set_future(self._begun, ConnectionResetError(RESTARTED))
        _set_future(self._ready, {"failed": "TVM's import ended the process; see above."})

    def _send(self, order: dict[str, Any], connection: socket.socket) -> None:
        if self._orders is None:
            raise ConnectionResetError(RESTARTED)
        line = json.dumps(order).encode() + b"\n"
        socket.send_fds(self._orders, [line], [connection.fileno()])


def _set_future(future: asyncio.Future[Any] | None, value: Any) -> None:
    """Set the future's result or exception, unless it is done."""
    if future is None or future.done():
        return
    if isinstance(value, Exception):
        future.set_exception(value)
        future.exception()  # there may be no waiter to retrieve it
    else:
        future.set_result(value)


def describe_end(status: int) -> str:
    """The error for the client of a session that ended with this ``waitpid`` status; "" if it exited
    normally."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        if number == signal.SIGKILL:
            name += " (the board may have run out of memory)"
        elif number == signal.SIGILL:
            name += " (an instruction that its CPU does not have)"
        return f"{DIED}{name}"
    code = os.waitstatus_to_exitcode(status)
    return f"{DIED}exit code {code}" if code else ""


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for the sessions' files, removed at the end. Each running server locks its own, so the
    next one can remove those of servers that were killed."""
    top = Path(tempfile.gettempdir())
    for folder in top.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _YOUNG:
                with _locked(folder):
                    shutil.rmtree(folder, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        with _locked(made):
            yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder; raises OSError if another process holds the lock."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)
