"""The session's side of the forkserver: start it, have it fork workers, follow their ends.

The forkserver itself is forkserver_process.py. There is one for all workers of a session. One that
died or does not answer, because it is stopped, say, is replaced; its workers end with it.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout

PRELOAD = "tvmtune.measure.preload"
"""What it imports for all workers."""
START_TIMEOUT = 120.0
"""Seconds to import that; slow boards take 20."""
FORK_TIMEOUT = 30.0
"""Seconds for a fork."""
_MESSAGE = 1 << 16
_MAIN = (
    "import sys; sys.path[:] = {path!r}; from tvmtune.workers.forkserver_process import main; "
    "main({descriptor}, {preload!r})"
)


class NoWorker(OSError):
    """No worker could be forked."""


class Child:
    """A forked worker."""

    def __init__(self, server: _Server, pid: int) -> None:
        self.server = server
        self.pid = pid
        self.code: int | None = None
        """Once it has ended: its exit code, negative for a signal; None if its server ended first."""
        self._ended = threading.Event()

    def kill(self) -> None:
        if not self._ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, seconds: float) -> bool:
        """Whether it ends within that time, as far as its server says."""
        return self._ended.wait(seconds)

    def set_ended(self, code: int | None) -> None:
        self.code = code
        self._ended.set()


class _Server:
    """One forkserver process."""

    def __init__(self) -> None:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        code = _MAIN.format(path=sys.path, descriptor=theirs.fileno(), preload=PRELOAD)
        self.gone = False
        self._orders = mine
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        """Guards what follows, and :attr:`gone`."""
        self._ready: Future[None] = Future()
        self._begun: dict[int, Future[Child]] = {}
        self._children: dict[int, Child] = {}
        started: Future[subprocess.Popen[bytes]] = Future()
        with theirs:
            arguments = (code, theirs.fileno(), started)
            threading.Thread(
                target=self._start_and_read, args=arguments, name="forkserver", daemon=True
            ).start()
            self.process = started.result()

    def fork(self, descriptors: list[int]) -> Child:
        """Fork a worker that gets ``descriptors``. Raises :class:`NoWorker`; if the server does not
        answer it is killed first."""
        try:
            self._ready.result(START_TIMEOUT)
            begun: Future[Child] = Future()
            number = next(self._numbers)
            with self._lock:
                if self.gone:
                    raise NoWorker("the forkserver has ended")
                self._begun[number] = begun
            order = json.dumps({"begin": number}).encode()
            # Without waiting: a server that does not read for so long will not answer either.
            socket.send_fds(self._orders, [order], descriptors, socket.MSG_DONTWAIT)
            return begun.result(FORK_TIMEOUT)
        except (FutureTimeout, BlockingIOError):
            self.kill()
            raise NoWorker("the forkserver does not answer") from None
        except NoWorker:
            raise
        except OSError as error:
            raise NoWorker(error.errno, error.strerror or str(error)) from None

    def kill(self) -> None:
        """End the process, and with it its workers."""
        self.process.kill()
        with self._lock:
            self.gone = True

    def close_orders(self) -> None:
        """Close this process's end of the socket."""
        self._orders.close()

    def _start_and_read(
        self, code: str, descriptor: int, started: Future[subprocess.Popen[bytes]]
    ) -> None:
        """Start it and handle its reports until it ends. For Linux its parent is the thread that
        started it, with which it ends: this one outlives it."""
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", code], pass_fds=[descriptor], stdin=subprocess.DEVNULL
            )
        except BaseException as error:
            self._orders.close()
            started.set_exception(error)
            return
        self.process = process
        started.set_result(process)
        self._read()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := self._orders.recv(_MESSAGE):
                self._handle(json.loads(data))
        self.process.kill()
        self.process.wait()
        error = NoWorker("the forkserver has ended")
        with self._lock:
            self.gone = True
            begun, self._begun = self._begun, {}
            children, self._children = self._children, {}
        for future in begun.values():
            future.set_exception(error)
        for child in children.values():
            child.set_ended(None)
        if not self._ready.done():
            self._ready.set_exception(error)
        self._orders.close()

    def _handle(self, report: dict[str, int | str]) -> None:
        with self._lock:
            if "begun" in report:
                child = Child(self, int(report["pid"]))
                self._children[child.pid] = child
                self._begun.pop(int(report["begun"])).set_result(child)
            elif "refused" in report:
                number = int(report["errno"])
                error = NoWorker(number, os.strerror(number))
                self._begun.pop(int(report["refused"])).set_exception(error)
            elif "ended" in report:
                # Or an orphan of a worker has ended.
                if ended := self._children.pop(int(report["ended"]), None):
                    ended.set_ended(int(report["code"]))
            elif "failed" in report:
                self._ready.set_exception(
                    NoWorker(errno.ENOEXEC, f"workers cannot be set up: {report['failed']}")
                )
            else:
                self._ready.set_result(None)


_lock = threading.Lock()
_server: _Server | None = None


def launch() -> _Server:
    """Start the forkserver unless it runs; returns at once."""
    global _server
    with _lock:
        if _server is None or _server.gone:
            _server = _Server()
        return _server


def fork(descriptors: list[int]) -> Child:
    """Fork a worker with ``descriptors``: its end of its channel, and the file for its output. Raises
    :class:`NoWorker`, or another OSError if this process has too many open files, say."""
    return launch().fork(descriptors)


def _stop() -> None:
    if _server is not None and not _server.gone:
        _server.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            _server.process.wait(5)


def _forget() -> None:
    """In a fork of this process: its parent alone keeps the forkserver, and the socket, open."""
    global _server, _lock
    if _server is not None:
        with contextlib.suppress(OSError):
            _server.close_orders()
    _server, _lock = None, threading.Lock()


atexit.register(_stop)
os.register_at_fork(after_in_child=_forget)
