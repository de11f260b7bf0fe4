"""The session's side of the forkserver: start it, have it fork workers, follow their ends.

The forkserver itself is forkserver_process.py. There is one for all workers of a session. One that
died or does not answer, because it is stopped, say, is replaced; its workers end with it.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout

from tvmtune.machine import exit_codes, faults, oom_kills
from tvmtune.workers.outcome import brief
from tvmtune.workers.output import Output

PRELOAD = "tvmtune.measure.preload"
"""What it imports for all workers."""
START_TIMEOUT = 120.0
"""Seconds to import that; slow boards take 20."""
FORK_TIMEOUT = 30.0
"""Seconds for a fork."""
_END_TIMEOUT = 5.0
"""Seconds for it to end once it was killed."""
_REAP_TIMEOUT = 1.0
"""Seconds for it to reap a worker that is dead."""
_MESSAGE = 1 << 16
_MAIN = (
    "import sys; sys.path[:] = {path!r}; from tvmtune.workers.forkserver_process import main; "
    "main({descriptor}, {preload!r})"
)


_SILENT = "the forkserver does not answer"


class NoWorker(Exception):
    """No worker could be forked, for ``fault`` if it is known."""

    def __init__(self, message: str, fault: faults.Fault) -> None:
        super().__init__(message)
        self.fault = fault


class Child:
    """A forked worker."""

    def __init__(self, server: _Server, pid: int) -> None:
        self.server = server
        self.pid = pid
        self.code: int | None = None
        """Once it has ended: its exit code, negative for a signal; None if its server ended first."""
        self._ended = threading.Event()
        self._descriptor = _open_process(pid)
        """Of the process: tells that it is dead even if its server is stopped."""
        if self._descriptor is not None:
            weakref.finalize(self, os.close, self._descriptor).atexit = False

    def kill(self) -> None:
        if not self._ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, seconds: float) -> bool:
        """Whether it ends within that time, as far as its server says, who alone knows how."""
        return self._ended.wait(seconds)

    def wait_dead(self, seconds: float) -> bool:
        """Whether it is dead within that time, whoever says so. Its server, which reaps it, is given a
        moment, unless it has just let another one lie."""
        if self._descriptor is None:
            return self.wait(seconds)
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        if not self._ended.is_set() and not poll.poll(seconds * 1000):
            return False
        if not self.server.late and not self.wait(_REAP_TIMEOUT):
            self.server.late = True
        return True

    def set_ended(self, code: int | None) -> None:
        self.code = code
        self._ended.set()


def _open_process(pid: int) -> int | None:
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):  # it has already ended, or too many files are open
            return os.pidfd_open(pid)
    return None


class _Server:
    """One forkserver process. Raises :class:`NoWorker` or OSError if it cannot be started."""

    def __init__(self) -> None:
        self._output = Output()
        self._oom_kills = oom_kills.count()
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        code = _MAIN.format(path=sys.path, descriptor=theirs.fileno(), preload=PRELOAD)
        self.gone = False
        self.late = False
        """Whether it has not reaped a worker in time, as while it is stopped; until its next report."""
        self._silent = False
        """Whether it was killed because it did not answer."""
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
            thread = threading.Thread(
                target=self._start_and_read, args=arguments, name="forkserver", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:
                mine.close()
                raise NoWorker(str(error), "processes") from None
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
                    raise self._no_worker()
                self._begun[number] = begun
            order = json.dumps({"begin": number}).encode()
            # Without waiting: a server that does not read for so long will not answer either.
            socket.send_fds(self._orders, [order], descriptors, socket.MSG_DONTWAIT)
            return begun.result(FORK_TIMEOUT)
        except (FutureTimeout, BlockingIOError):
            self.kill()
            raise NoWorker(_SILENT, "") from None
        except OSError as error:
            raise _no_worker(error) from None

    def kill(self) -> None:
        """End the process, which does not answer, and with it its workers."""
        with self._lock:
            self.gone = self._silent = True
        self.process.kill()

    def why_it_ended(self, kills: int | None) -> tuple[str, faults.Fault]:
        """Why the process ended, from its exit code and its last line of output; ``kills``: see
        :func:`tvmtune.machine.faults.of_exit`."""
        code = self.process.poll()
        if self._silent:
            return _SILENT, ""
        if code is None:
            return "the forkserver has ended", ""
        fault = faults.of_exit(code, kills)
        how = f"the forkserver died: {exit_codes.describe(code)}"
        if fault == "memory":
            how += " (out of memory)"
        text = self._output.after(how)
        return text, fault or faults.of_text(text, kills)

    def _no_worker(self) -> NoWorker:
        """What to raise once the process has ended."""
        return NoWorker(*self.why_it_ended(self._oom_kills))

    def close_orders(self) -> None:
        """Close this process's end of the socket."""
        self._orders.close()

    def _start_and_read(
        self, code: str, descriptor: int, started: Future[subprocess.Popen[bytes]]
    ) -> None:
        """Start it and handle its reports until it ends. For Linux its parent is the thread that
        started it, with which it ends: this one outlives it."""
        output = self._output.descriptor
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        except BaseException as error:
            self._orders.close()
            started.set_exception(error)
            return
        self.process = process
        started.set_result(process)
        try:
            self._read()
        except Exception as error:  # this process lacks memory, say
            self._end(_no_worker(error))
        else:
            self._end()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._orders.recv(_MESSAGE):
                self._handle(json.loads(data))

    def _end(self, failure: NoWorker | None = None) -> None:
        """Everybody who waits for the process learns that it is gone, for ``failure`` if it is this
        side's."""
        with self._lock:
            self.gone = True
        if failure is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_END_TIMEOUT)
        self.process.kill()
        self.process.wait()
        failure = failure or self._no_worker()
        with self._lock:
            begun, self._begun = self._begun, {}
            children, self._children = self._children, {}
        for future in begun.values():
            future.set_exception(failure)
        for child in children.values():
            child.set_ended(None)
        if not self._ready.done():
            self._ready.set_exception(failure)
        self._orders.close()

    def _handle(self, report: dict[str, int | str]) -> None:
        self.late = False
        with self._lock:
            if "begun" in report:
                child = Child(self, int(report["pid"]))
                self._children[child.pid] = child
                self._begun.pop(int(report["begun"])).set_result(child)
            elif "refused" in report:
                number = int(report["errno"])
                error = NoWorker(os.strerror(number), faults.of_errno(number))
                self._begun.pop(int(report["refused"])).set_exception(error)
            elif "ended" in report:
                # Or an orphan of a worker has ended.
                if ended := self._children.pop(int(report["ended"]), None):
                    ended.set_ended(int(report["code"]))
            elif "failed" in report:
                text = f"workers cannot be set up: {report['failed']}"
                self._ready.set_exception(NoWorker(text, faults.of_text(text)))
            else:
                self._ready.set_result(None)


def _no_worker(error: Exception) -> NoWorker:
    text = error.strerror if isinstance(error, OSError) else ""
    return NoWorker(text or brief(error), faults.of_error(error))


_lock = threading.Lock()
_server: _Server | None = None


def launch() -> _Server:
    """Start the forkserver unless it runs; returns at once. Raises :class:`NoWorker`."""
    global _server
    with _lock:
        if _server is None or _server.gone:
            try:
                _server = _Server()
            except OSError as error:  # too many open files, say
                raise _no_worker(error) from None
        return _server


def fork(descriptors: list[int]) -> Child:
    """Fork a worker with ``descriptors``: its end of its channel, and the file for its output. Raises
    :class:`NoWorker`."""
    return launch().fork(descriptors)


def _stop() -> None:
    if _server is not None and not _server.gone:
        _server.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            _server.process.wait(_END_TIMEOUT)


def _forget() -> None:
    """In a fork of this process: its parent alone keeps the forkserver, and the socket, open."""
    global _server, _lock
    if _server is not None:
        with contextlib.suppress(OSError):
            _server.close_orders()
    _server, _lock = None, threading.Lock()


atexit.register(_stop)
os.register_at_fork(after_in_child=_forget)
