"""Processes that build and run candidates: they live on between calls and die at a deadline.

A worker is forked from a server that has imported TVM once, so that replacing one that crashed,
hung or grew costs milliseconds. Nothing of a candidate is ever loaded into the session's process.
What a worker starts, such as a linker or a GPU's compiler, ends with it.
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

from tvmtune.threads import allowed_cpus

PR_SET_PDEATHSIG = 1

CPUS = allowed_cpus()
"""What the process may use. TVM may bind the session's thread to one CPU later, when it runs a kernel
there; workers must not inherit that."""

_unfit: str | None = None
"""In a worker: why its initialisation failed, if so."""
_undertaker: subprocess.Popen[bytes] | None = None
"""In a worker: what ends its children after it."""


@dataclass(frozen=True)
class Outcome:
    """What became of one call: a value, or the stage it failed in and a message."""

    value: Any = None
    stage: str | None = None
    message: str = ""

    @property
    def ok(self) -> bool:
        return self.stage is None


def resolve(name: str) -> Callable[..., Any]:
    """The function behind ``"package.module:function"``."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def gather(
    handles: Sequence[Any],
    wait: Callable[[Any], Outcome],
    on_result: Callable[[int, Outcome], None] | None,
    drop: Callable[[], None],
) -> list[Outcome]:
    """What became of the calls behind the handles, in order; ``drop`` them if that is not wanted to
    the end."""
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
    calls, because TVM's processes grow. What the workers print goes to a file in ``directory``.
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
        """How much of what the workers printed has been looked at."""

    def submit(self, function: str, call: tuple[Any, ...], deadline: float) -> Any:
        """Have ``function`` called with ``call``; the handle is for :meth:`collect`."""
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

        ``on_result`` hears of each result in order, as soon as it and all before it are there.
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
        """What became of calls that were submitted with ``deadline``, in order.

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
            how = _how(error.exitcode)
            words, self._read = _last_line(self._stderr.name, self._read)
            return Outcome(stage="crash", message=f"the worker died: {how}{words}")
        except CancelledError:
            return Outcome(stage="crash", message="cancelled")
        except Exception as error:  # whatever the worker's function raised
            return Outcome(stage=stage, message=brief(error))

    def close(self) -> None:
        """End the workers at once; nothing they hold is worth waiting for."""
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
    """One process that calls functions by name, one after another: what a thread needs that looks after
    a single thing, a board say. A process that was killed or died is replaced at the next call.

    ``init``, ``options`` and ``directory`` are as for :class:`Workers`. :meth:`close` may be called by
    another thread while a call runs; everything else belongs to one thread.
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
        self._line: Connection | None = None
        """Only the thread that calls closes it: a descriptor that another polls must not be reused."""
        self._lock = threading.Lock()
        """Between the start of a process and :meth:`close`."""
        self._closed = False

    def call(self, function: str, arguments: tuple[Any, ...], deadline: float) -> Outcome:
        """What became of ``function(*arguments)`` within ``deadline`` seconds, as
        :meth:`Workers.collect` tells it. Once the worker is closed, every call crashes."""
        try:
            line = self._ready()
            line.send((function, arguments))
            if not line.poll(deadline):
                self.kill()
                return Outcome(stage="timeout", message=f"killed after {deadline:g} s")
            ok, value = line.recv()
        except (EOFError, OSError):
            return self._expired()
        return Outcome(value=value) if ok else Outcome(stage="run", message=value)

    def kill(self) -> None:
        """End the process, whatever it does."""
        process, line = self._process, self._line
        self._process = self._line = None
        if process is not None:
            process.kill()
            process.join()
        if line is not None:
            line.close()

    def close(self) -> None:
        """End the process for good."""
        with self._lock:
            self._closed = True
            process = self._process
        if process is not None:
            process.kill()
            process.join()
        self._stderr.close()

    def _ready(self) -> Connection:
        if self._process is not None and not self._process.is_alive():
            self.kill()
        if self._line is None:
            context = _forkserver()
            mine, theirs = context.Pipe()
            arguments = (CPUS, self._stderr.name, list(sys.path), self._init, self._options)
            process = context.Process(target=_listen, args=(theirs, arguments), daemon=True)
            with self._lock:
                if self._closed:
                    raise EOFError
                with _starting:
                    process.start()
                self._process, self._line = process, mine
            theirs.close()
        return self._line

    def _expired(self) -> Outcome:
        process = self._process
        if process is None:
            why = "the worker is closed" if self._closed else "no worker could be started"
            return Outcome(stage="crash", message=why)
        process.join(5)
        words, self._read = _last_line(self._stderr.name, self._read)
        outcome = Outcome(
            stage="crash", message=f"the worker died: {_how(process.exitcode)}{words}"
        )
        self.kill()
        return outcome


_starting = threading.Lock()
"""Starting a process, multiprocessing also looks after those started before: not for two threads."""


def _forkserver() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tvmtune.measure.preload"])
    return context


def _listen(line: Connection, arguments: tuple[Any, ...]) -> None:
    """In the process of a :class:`Worker`."""
    _start(*arguments)
    with contextlib.suppress(EOFError, OSError):  # the session has gone
        while True:
            function, call = line.recv()
            try:
                answer = True, _call(function, *call)
            except Exception as error:
                answer = False, str(error)
            line.send(answer)


def _start(
    cpus: list[int], stderr: str, path: list[str], init: str | None, options: dict[str, Any]
) -> None:
    """First thing in a worker: die with the session, leave Ctrl-C to it, keep the terminal clean."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        # The worker's parent is the fork server, which ends when the session does, even by kill -9:
        # it waits for the other end of a pipe to close. Every worker inherits that end, too, and has
        # to let go of it, or a busy one would keep the server, and so itself, alive.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        server: Any = forkserver._forkserver
        if server._forkserver_alive_fd is not None:
            os.close(server._forkserver_alive_fd)
            server._forkserver_alive_fd = None
    _keep_together()
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
        except Exception as error:  # a pool ends for good if this leaves the initialiser
            global _unfit
            _unfit = brief(error)


def _keep_together() -> None:
    """Have what this worker starts end with it, however it ends.

    A process that is killed cannot end its children, and a compiler's driver has children of its own:
    the worker makes a group of them all, with a shell in it that sees the worker end, by the end of a
    pipe that nobody else holds, and takes the group with it.
    """
    global _undertaker
    os.setpgid(0, 0)
    ended, _ = os.pipe()  # the other end stays open as long as the worker lives
    nowhere = subprocess.DEVNULL
    with contextlib.suppress(OSError):  # at the limit of processes the worker works all the same
        _undertaker = subprocess.Popen(
            ["/bin/sh", "-c", "read _; kill -KILL 0"], stdin=ended, stdout=nowhere, stderr=nowhere
        )
    os.close(ended)


def _call(function: str, *args: Any) -> Any:
    if _unfit is not None:
        raise RuntimeError(f"the worker could not be set up: {_unfit}")
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


def _how(code: int | None) -> str:
    """How a process ended, from its exit code."""
    if code is None or code >= 0:
        return f"exit code {code or 0}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _last_line(path: str, begin: int) -> tuple[str, int]:
    """The last line of a file from ``begin`` on, behind a colon, and where the file ends: the message
    of a worker that died, if it left one."""
    try:
        with Path(path).open("rb") as file:
            file.seek(begin)
            text = file.read()
    except OSError:
        return "", begin
    lines = text.decode(errors="replace").strip().splitlines()
    return (f": {lines[-1][:300]}" if lines else ""), begin + len(text)
