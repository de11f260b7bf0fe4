"""Where a board's sessions come from: a process that has imported TVM, and forks.

It runs as ``python -m tvmtune.farm.nursery FD OPTIONS`` and takes orders over a Unix socket, a JSON line
each, with the connection that it is about: ``serve`` forks a session that serves it, ``answer`` sends its
client an error in the place of the result that it waits for. It reports what it started and what ended.
It is single-threaded and calls nothing that a client sent, so it has no reason to die; should it, the
supervisor starts another.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

from tvmtune.errors import TvmtuneError

START = 120.0
"""Seconds for the import of TVM; slow boards take 20."""
_PR_SET_PDEATHSIG = 1
_LINE = 1 << 16


class Session:
    """A forked session, as the supervisor sees it."""

    def __init__(self, pid: int, ended: asyncio.Future[str]) -> None:
        self.pid = pid
        self.ended = ended
        """How it ended: empty where it did so of its own, else what its client has to be told."""

    def kill(self) -> None:
        """End whatever is left of its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


class Nursery:
    """The supervisor's side. ``options``: ``target`` (a backend whose ``serve_init`` sessions call),
    ``options`` (for that), ``libraries`` (paths to load into each)."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._process: asyncio.subprocess.Process | None = None
        self._orders: socket.socket | None = None
        self._reader: asyncio.Task[None] | None = None
        self._begun: asyncio.Future[int] | None = None
        self._sessions: dict[int, asyncio.Future[str]] = {}
        self._lock = asyncio.Lock()
        self.versions: dict[str, str] = {}

    async def __aenter__(self) -> Nursery:
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def begin(self, connection: socket.socket) -> Session:
        """Fork a session that serves ``connection``; raises OSError if that is not possible."""
        async with self._lock:
            await self._ensure()
            loop = asyncio.get_running_loop()
            self._begun = loop.create_future()
            self._send({"serve": True}, connection)
            pid = await asyncio.wait_for(self._begun, START)
            return Session(pid, self._sessions[pid])

    async def answer(self, connection: socket.socket, message: str) -> None:
        """Have the client of ``connection`` told that its call failed."""
        async with self._lock:
            with contextlib.suppress(OSError, TvmtuneError):
                await self._ensure()
                self._send({"answer": message}, connection)

    async def _ensure(self) -> None:
        if self._process is None or self._process.returncode is not None:
            await self._stop()
            await self._start()

    async def _start(self) -> None:
        mine, theirs = socket.socketpair()
        mine.setblocking(False)
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tvmtune.farm.nursery",
            str(theirs.fileno()),
            json.dumps(self._options),
            pass_fds=[theirs.fileno()],
            stdin=asyncio.subprocess.DEVNULL,
        )
        theirs.close()
        self._orders = mine
        ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._reader = asyncio.create_task(self._read(mine, ready))
        try:
            first = await asyncio.wait_for(ready, START)
        except (EOFError, asyncio.TimeoutError):
            await self._stop()
            raise TvmtuneError("TVM could not be started on this board: see above.") from None
        if "failed" in first:
            await self._stop()
            raise TvmtuneError(f"this board cannot serve: {first['failed']}")
        self.versions = first["ready"]

    async def _stop(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
        if self._orders is not None:
            self._orders.close()
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        for pid in self._sessions:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        self._lost()
        self._process = None

    async def _read(self, orders: socket.socket, ready: asyncio.Future[dict[str, Any]]) -> None:
        loop = asyncio.get_running_loop()
        rest = b""
        while True:
            data = await loop.sock_recv(orders, _LINE)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                report = json.loads(line)
                if "ready" in report or "failed" in report:
                    if not ready.done():
                        ready.set_result(report)
                elif "begun" in report:
                    pid = int(report["begun"])
                    self._sessions[pid] = loop.create_future()
                    if self._begun is not None and not self._begun.done():
                        self._begun.set_result(pid)
                elif "ended" in report:
                    ended = self._sessions.pop(int(report["ended"]), None)
                    if ended is not None and not ended.done():
                        ended.set_result(_how(int(report["status"])))
        if not ready.done():
            ready.set_exception(EOFError())
        self._lost()

    def _lost(self) -> None:
        """The nursery is gone, and its sessions with it."""
        for ended in self._sessions.values():
            if not ended.done():
                ended.set_result("the board's server had to be restarted")
        self._sessions.clear()
        if self._begun is not None and not self._begun.done():
            self._begun.set_exception(ConnectionResetError("the nursery is gone"))

    def _send(self, order: dict[str, Any], connection: socket.socket) -> None:
        assert self._orders is not None
        line = json.dumps(order).encode() + b"\n"
        socket.send_fds(self._orders, [line], [connection.fileno()])


def _how(status: int) -> str:
    """What to tell the client of a session that ended so."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        return f"{DIED}{name}"
    code = os.waitstatus_to_exitcode(status)
    return f"{DIED}exit code {code}" if code else ""


DIED = "the board's process died: "
"""How the message begins that a client gets whose candidate took its process down."""


def main(descriptor: int, options: dict[str, Any]) -> None:
    """The nursery itself."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    orders = socket.socket(fileno=descriptor)

    def report(message: dict[str, Any]) -> None:
        orders.sendall(json.dumps(message).encode() + b"\n")

    try:
        versions = _import()
    except Exception as error:
        report({"failed": f"{type(error).__name__}: {error}"})
        return
    wake, woken = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    report({"ready": versions})
    folders: dict[int, Path] = {}
    while True:
        readable, _, _ = select.select([orders, wake], [], [])
        if wake in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wake, _LINE)
            for pid, status in _ended():
                shutil.rmtree(folders.pop(pid), ignore_errors=True)
                report({"ended": pid, "status": status})
        if orders in readable:
            data, connections, _, _ = socket.recv_fds(orders, _LINE, 1)
            if not data:
                return
            order = json.loads(data)
            connection = connections[0]
            if "answer" in order:
                _answer(connection, order["answer"])
            else:
                folder = Path(tempfile.mkdtemp(prefix=f"tvmtune-{os.getpid()}-board-"))
                pid = os.fork()
                if pid == 0:
                    orders.close()
                    _session(connection, folder, options)
                folders[pid] = folder
                report({"begun": pid})
            os.close(connection)


def _ended() -> list[tuple[int, int]]:
    found = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            found.append((pid, status))
    return found


def _import() -> dict[str, str]:
    import tvm
    import tvm.rpc
    import tvm_ffi

    return {"tvm": str(tvm.__version__), "tvm-ffi": str(tvm_ffi.__version__)}


def _answer(connection: int, message: str) -> None:
    import tvm

    with contextlib.suppress(Exception):
        tvm.get_global_func("rpc.ReturnException")(connection, message)


def _session(connection: int, folder: Path, options: dict[str, Any]) -> None:
    """In the fork: serve one client, and never return."""
    code = 1
    try:
        os.setsid()
        _die_with_parent()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        _first_to_go()
        os.chdir(folder)
        from tvmtune.farm import board

        board.serve(connection, folder, options)
        code = 0
    except BaseException as error:
        print(f"session: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        _answer(connection, f"the board could not set up the session: {error}")
    finally:
        os._exit(code)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _first_to_go() -> None:
    """Where memory runs out, a session goes, not the board's server."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
