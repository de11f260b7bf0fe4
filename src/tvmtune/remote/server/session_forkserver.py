"""The supervisor's side of the forkserver: start it, order forks, track sessions.

The forkserver itself is forkserver_process.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import sys
from typing import Any

from tvmtune.errors import TvmtuneError
from tvmtune.remote.protocol import DIED, RESTARTED

START_TIMEOUT = 120.0
"""Seconds to import TVM; slow boards take 20."""
ANSWER_TIMEOUT = 30.0
"""Seconds for the forkserver to fork or to answer; one that does not, because it is stopped, say, is
replaced."""
CHECK_INTERVAL = 30.0
"""Seconds between checks of an idle forkserver."""
_LINE = 1 << 16


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
        self._checker: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[dict[str, Any]] | None = None
        self._numbers = itertools.count()
        self._begun: dict[int, asyncio.Future[ForkedSession]] = {}
        """Orders that wait for their session, by number."""
        self._pong: asyncio.Future[None] | None = None
        self._lock = asyncio.Lock()
        """Held while the process starts or ends."""
        self._sessions: dict[int, ForkedSession] = {}
        self.versions: dict[str, str] = {}
        """TVM's versions, once the process has started."""

    async def __aenter__(self) -> SessionForkserver:
        await self.ensure_running()
        self._checker = asyncio.create_task(self._check())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._checker is not None:
            self._checker.cancel()
            await asyncio.gather(self._checker, return_exceptions=True)
        async with self._lock:
            await self._stop()

    async def ensure_running(self) -> None:
        """Start the process if it is not running; raises :class:`TvmtuneError` if that fails."""
        async with self._lock:
            if self._process is None or self._process.returncode is not None:
                await self._stop()
                try:
                    await self._start()
                except BaseException:
                    await self._stop()
                    raise

    async def begin(self, connection: socket.socket) -> ForkedSession:
        """Fork a session that serves ``connection``; raises OSError if that is not possible. A process
        that does not answer is killed."""
        await self.ensure_running()
        number = next(self._numbers)
        begun: asyncio.Future[ForkedSession] = asyncio.get_running_loop().create_future()
        self._begun[number] = begun
        try:
            self._send({"serve": number}, connection)
            return await asyncio.wait_for(begun, ANSWER_TIMEOUT)
        except (asyncio.TimeoutError, BlockingIOError):
            await self._kill()
            raise ConnectionResetError("its forkserver does not answer") from None
        finally:
            self._begun.pop(number, None)

    async def answer(self, connection: socket.socket, message: str) -> None:
        """Send the client of ``connection`` an error in place of its result."""
        with contextlib.suppress(OSError, TvmtuneError):
            await self.ensure_running()
            self._send({"answer": message}, connection)

    async def _start(self) -> None:
        # One message each: orders must not be received together.
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
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
            raise TvmtuneError(f"TVM could not be imported within {START_TIMEOUT:.0f} s") from None
        if "ready" not in first:
            raise TvmtuneError(f"this machine cannot serve: {first['failed']}")
        self.versions = first["ready"]

    async def _check(self) -> None:
        """Replace a process that does not answer, before a client needs it. While a session runs it is
        left alone: the session needs it only to end."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL)
            if self._sessions or self._begun or self._lock.locked():
                continue
            self._pong = asyncio.get_running_loop().create_future()
            try:
                self._send({"ping": True})
                await asyncio.wait_for(self._pong, ANSWER_TIMEOUT)
            except (asyncio.TimeoutError, BlockingIOError):
                if not self._sessions:  # one that began has shown that it answers
                    await self._kill()
            except OSError:  # it has just ended
                pass
            with contextlib.suppress(TvmtuneError, OSError):  # the next client tries again
                await self.ensure_running()

    async def _kill(self) -> None:
        if self._process is not None:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
            await self._process.wait()

    async def _stop(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
            self._reader = None
        for session in self._sessions.values():
            session.kill()
        await self._kill()
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
            waiting = self._begun.get(int(report["number"]))
            if waiting is None or waiting.done():  # nobody waits for it any more
                session.kill()
            _set_future(waiting, session)
        elif "refused" in report:
            waiting = self._begun.get(int(report["number"]))
            _set_future(waiting, OSError(str(report["refused"])))
        elif "pong" in report:
            _set_future(self._pong, None)
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
        for waiting in self._begun.values():
            _set_future(waiting, ConnectionResetError(RESTARTED))
        _set_future(self._pong, ConnectionResetError(RESTARTED))
        _set_future(self._ready, {"failed": "TVM's import ended the process; see above."})

    def _send(self, order: dict[str, Any], connection: socket.socket | None = None) -> None:
        if self._orders is None:
            raise ConnectionResetError(RESTARTED)
        line = json.dumps(order).encode() + b"\n"
        descriptors = [] if connection is None else [connection.fileno()]
        socket.send_fds(self._orders, [line], descriptors)


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
