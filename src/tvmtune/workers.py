"""Worker processes that build and run candidates, and are killed at a deadline.

Workers live on between calls. They are forked from a server that has imported TVM once, so replacing
one that crashed, hung or grew costs milliseconds. No candidate is ever loaded into the session's
process. Whatever a worker starts, such as a linker or a GPU's compiler, ends with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from pebble import ProcessExpired, ProcessPool

from tvmtune.machine.threads import allowed_cpus

PR_SET_PDEATHSIG = 1

CPUS = allowed_cpus()
"""The CPUs that this process may use. TVM may later bind the session's thread to one of them, when it
runs a kernel there; workers must not inherit that."""

_init_error: str | None = None
"""In a worker: why its initialization failed, if it did."""
_child_reaper: subprocess.Popen[bytes] | None = None
"""In a worker: the process that kills its children once it has ended."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one call: a value, or the stage that failed and a message."""

    value: Any = None
    stage: str | None = None
    message: str = ""

    @property
    def ok(self) -> bool:
        return self.stage is None


def resolve(name: str) -> Callable[..., Any]:
    """The function named ``"package.module:function"``."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def gather(
    handles: Sequence[Any],
    wait: Callable[[Any], Outcome],
    on_result: Callable[[int, Outcome], None] | None,
    drop: Callable[[], None],
) -> list[Outcome]:
    """The outcomes of ``handles``, in order; ``on_result`` receives each. If anything raises,
    ``drop`` is called first."""
    outcomes: list[Outcome] = []
    try:
        for index, handle in enumerate(handles):
            outcomes.append(wait(handle))
            if on_result is not None:
                on_result(index, outcomes[-1])
    except BaseException:
        drop()
        raise
    return outcomes


class Workers:
    """A pool of ``slots`` processes that call functions by name.

    ``init`` is called in each new worker with ``options``. A worker is replaced after ``recycle``
    calls, because TVM's processes grow. The workers' output goes to a file in ``directory``.
    """

    def __init__(
        self,
        slots: int,
        *,
        init: str | None = None,
        options: dict[str, Any] | None = None,
        recycle: int = 200,
        directory: Path | None = None,
    ) -> None:
        self._stderr = tempfile.NamedTemporaryFile(  # noqa: SIM115, it lives as long as the pool
            prefix=f"tvmtune-{os.getpid()}-workers-", suffix=".log", dir=directory
        )
        self._pool = ProcessPool(
            max_workers=slots,
            max_tasks=recycle,
            context=_forkserver(),
            initializer=_start,
            initargs=(CPUS, self._stderr.name, list(sys.path), init, dict(options or {})),
        )
        self._closed = False
        self._read = 0
        """Bytes of the workers' output that have been read."""

    def submit(self, function: str, call: tuple[Any, ...], deadline: float) -> Any:
        """Queue ``function(*call)``; the handle is for :meth:`collect`."""
        return self._pool.schedule(_call, args=(function, *call), timeout=deadline)

    def map(
        self,
        function: str,
        calls: Sequence[tuple[Any, ...]],
        *,
        deadline: float,
        stage: str,
        on_result: Callable[[int, Outcome], None] | None = None,
    ) -> list[Outcome]:
        """Call ``function`` once per tuple of arguments; results in order.

        ``on_result`` receives each result in order, as soon as it and all before it are there.
        """
        handles = [self.submit(function, call, deadline) for call in calls]
        return self.collect(handles, deadline=deadline, stage=stage, on_result=on_result)

    def collect(
        self,
        handles: Sequence[Any],
        *,
        deadline: float,
        stage: str,
        on_result: Callable[[int, Outcome], None] | None = None,
    ) -> list[Outcome]:
        """The outcomes of calls that were submitted with ``deadline``, in order.

        A call that took longer than ``deadline`` seconds was killed and comes back as ``timeout``;
        one whose process died, as ``crash``; one that raised, as ``stage``.
        """

        def drop() -> None:
            for future in handles:
                future.cancel()

        return gather(handles, lambda f: self._wait(f, deadline, stage), on_result, drop)

    def _wait(self, future: Any, deadline: float, stage: str) -> Outcome:
        try:
            return Outcome(value=future.result())
        except FutureTimeout:
            return Outcome(stage="timeout", message=f"killed after {deadline:g} s ({stage})")
        except ProcessExpired as error:
            message, self._read = _death(error.exitcode, self._stderr.name, self._read)
            return Outcome(stage="crash", message=message)
        except CancelledError:
            return Outcome(stage="crash", message="cancelled")
        except Exception as error:  # whatever the worker's function raised
            return Outcome(stage=stage, message=brief(error))

    def close(self) -> None:
        """Kill the workers at once; nothing they hold is worth waiting for."""
        if self._closed:
            return
        self._closed = True
        self._pool.stop()
        with contextlib.suppress(Exception):
            self._pool.join(timeout=5)
        self._stderr.close()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Worker:
    """One process that calls functions by name, one after another, for a thread that looks after a
    single thing, such as a board. A process that was killed or died is replaced at the next call.

    ``init``, ``options`` and ``directory`` are as for :class:`Workers`. :meth:`close` may be called
    by another thread while a call runs; everything else belongs to one thread.

    Why not a pool of one: Pebble's breaks for good if its worker dies while idle (the next call
    raises RuntimeError), and a board's worker is often idle; each pool has three threads that poll,
    3% of a core for 32 idle boards; and a round trip takes 0.75 ms, not 0.05. Why not TVM's
    PopenWorker: after each kill it starts an interpreter that imports TVM, 2.2 s where a fork takes
    less than 0.1.
    """

    def __init__(
        self,
        *,
        init: str | None = None,
        options: dict[str, Any] | None = None,
        directory: Path | None = None,
    ) -> None:
        self._init = init
        self._options = dict(options or {})
        self._stderr = tempfile.NamedTemporaryFile(  # noqa: SIM115, it lives as long as the worker
            prefix=f"tvmtune-{os.getpid()}-worker-", suffix=".log", dir=directory
        )
        self._read = 0
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None
        """Closed only by the calling thread: a descriptor that is being polled must not be reused."""
        self._lock = threading.Lock()
        """Held while a process starts and while :meth:`close` marks the end."""
        self._closed = False

    def call(self, function: str, arguments: tuple[Any, ...], deadline: float) -> Outcome:
        """The outcome of ``function(*arguments)`` within ``deadline`` seconds, as from
        :meth:`Workers.collect`; an exception's stage is ``run``. Once closed, every call is a
        ``crash``."""
        try:
            connection = self._connect()
            connection.send((function, arguments))
            if not connection.poll(deadline):
                self.kill()
                return Outcome(stage="timeout", message=f"killed after {deadline:g} s")
            ok, value = connection.recv()
        except (EOFError, OSError):
            return self._crash()
        return Outcome(value=value) if ok else Outcome(stage="run", message=value)

    def kill(self) -> None:
        """Kill the process, whatever it does."""
        process, connection = self._process, self._connection
        self._process = self._connection = None
        if process is not None:
            process.kill()
            process.join()
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Kill the process for good."""
        with self._lock:
            self._closed = True
            process = self._process
        if process is not None:
            process.kill()
            process.join()
        self._stderr.close()

    def _connect(self) -> Connection:
        if self._process is not None and not self._process.is_alive():
            self.kill()
        if self._connection is None:
            context = _forkserver()
            mine, theirs = context.Pipe()
            arguments = (CPUS, self._stderr.name, list(sys.path), self._init, self._options)
            process = context.Process(target=_listen, args=(theirs, arguments), daemon=True)
            with self._lock:
                if self._closed:
                    raise EOFError
                with _starting:
                    process.start()
                self._process, self._connection = process, mine
            theirs.close()
        return self._connection

    def _crash(self) -> Outcome:
        process = self._process
        if process is None:
            reason = "the worker is closed" if self._closed else "no worker could be started"
            return Outcome(stage="crash", message=reason)
        process.join(5)
        message, self._read = _death(process.exitcode, self._stderr.name, self._read)
        self.kill()
        return Outcome(stage="crash", message=message)


_starting = threading.Lock()
"""When multiprocessing starts a process it also reaps earlier ones, which is not safe in two threads.
"""


def _forkserver() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tvmtune.measure.preload"])
    return context


def _listen(connection: Connection, arguments: tuple[Any, ...]) -> None:
    """The main loop of a :class:`Worker`'s process."""
    _start(*arguments)
    with contextlib.suppress(EOFError, OSError):  # the session has ended
        while True:
            function, call = connection.recv()
            try:
                answer = True, _call(function, *call)
            except Exception as error:
                answer = False, str(error)
            connection.send(answer)


def _start(
    cpus: list[int], stderr: str, path: list[str], init: str | None, options: dict[str, Any]
) -> None:
    """Set up a worker: die with the session, ignore Ctrl-C, keep the terminal clean."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        # The worker's parent is the fork server, which ends with the session, even after kill -9: it
        # waits for the other end of a pipe to close. Every worker inherits that end and must close it,
        # or a busy worker would keep the server, and so itself, alive.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        server: Any = forkserver._forkserver
        if server._forkserver_alive_fd is not None:
            os.close(server._forkserver_alive_fd)
            server._forkserver_alive_fd = None
    _start_child_reaper()
    log = os.open(stderr, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(log, 2)
    os.dup2(log, 1)
    os.close(log)
    sys.path[:] = path
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)
    if init is not None:
        try:
            resolve(init)(options)
        except Exception as error:  # a pool ends for good if its initializer raises
            global _init_error
            _init_error = brief(error)


def _start_child_reaper() -> None:
    """Have everything that this worker starts end with it, however it ends.

    A process that is killed cannot end its children, and a compiler's driver has children of its own.
    So the worker leads a process group, in which a shell reads a pipe that only the worker holds
    open: when the worker ends, the shell kills the group.
    """
    global _child_reaper
    os.setpgid(0, 0)
    ended, _ = os.pipe()  # the other end stays open as long as the worker lives
    nowhere = subprocess.DEVNULL
    with contextlib.suppress(OSError):  # at the process limit the worker does without
        _child_reaper = subprocess.Popen(
            ["/bin/sh", "-c", "read _; kill -KILL 0"], stdin=ended, stdout=nowhere, stderr=nowhere
        )
    os.close(ended)


def _call(function: str, *args: Any) -> Any:
    if _init_error is not None:
        raise RuntimeError(f"the worker could not be set up: {_init_error}")
    try:
        return resolve(function)(*args)
    except Exception as error:
        # TVM's exceptions do not survive pickling; their text is what matters.
        raise RuntimeError(brief(error)) from None


def brief(error: BaseException, limit: int = 500) -> str:
    """An error's message on one line."""
    text = str(error).strip() or type(error).__name__
    lines = [line for line in text.splitlines() if line.strip()]
    # TVM puts the check that failed on the last line and its C++ stack before it.
    chosen = lines[-1] if len(lines) > 3 else " ".join(lines)
    return chosen.strip()[:limit]


def _exit(code: int | None) -> str:
    """An exit code in words."""
    if code is None or code >= 0:
        return f"exit code {code or 0}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _death(code: int | None, path: str, begin: int) -> tuple[str, int]:
    """Why a worker died, from its exit code and its last line of output, and where that output now
    ends. ``path``: the file it wrote to; ``begin``: where its unread part begins."""
    text = f"the worker died: {_exit(code)}"
    try:
        with Path(path).open("rb") as file:
            file.seek(begin)
            output = file.read()
    except OSError:
        return text, begin
    lines = output.decode(errors="replace").strip().splitlines()
    return (f"{text}: {lines[-1][:300]}" if lines else text), begin + len(output)
