"""Processes that build and run candidates: they live on between calls and die at a deadline.

A worker is forked from a server that has imported TVM once, so that replacing one that crashed,
hung or grew costs milliseconds. Nothing of a candidate is ever loaded into the session's process.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from multiprocessing import forkserver
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
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tvmtune.measure.preload"])
        self._stderr = tempfile.NamedTemporaryFile(  # noqa: SIM115, it lives as long as the pool
            prefix=f"tvmtune-{os.getpid()}-workers-", suffix=".log", dir=directory
        )
        self._pool = ProcessPool(
            max_workers=slots,
            max_tasks=recycle,
            context=context,
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
        outcomes: list[Outcome] = []
        try:
            for index, future in enumerate(handles):
                outcome = self._wait(future, deadline, stage)
                outcomes.append(outcome)
                if on_result is not None:
                    on_result(index, outcome)
        except BaseException:
            for future in handles:
                future.cancel()
            raise
        return outcomes

    def _wait(self, future: Any, deadline: float, stage: str) -> Outcome:
        try:
            return Outcome(value=future.result())
        except FutureTimeout:
            return Outcome(stage="timeout", message=f"killed after {deadline:g} s ({stage})")
        except ProcessExpired as error:
            code = error.exitcode or 0
            how = _signal_name(-code) if code < 0 else f"exit code {code}"
            return Outcome(stage="crash", message=f"the worker died: {how}{self._last_words()}")
        except CancelledError:
            return Outcome(stage="crash", message="cancelled")
        except Exception as error:  # whatever the worker's function raised
            return Outcome(stage=stage, message=brief(error))

    def _last_words(self) -> str:
        """The last line that workers have printed since the last crash: a message, if it left one."""
        try:
            with Path(self._stderr.name).open("rb") as file:
                file.seek(self._read)
                text = file.read()
        except OSError:
            return ""
        self._read += len(text)
        lines = text.decode(errors="replace").strip().splitlines()
        return f": {lines[-1][:300]}" if lines else ""

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


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
