"""One worker process, seen from the session."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tvmtune.machine import exit_codes, faults, oom_kills
from tvmtune.machine.threads import allowed_cpus
from tvmtune.workers import forkserver
from tvmtune.workers.channel import Channel
from tvmtune.workers.outcome import Outcome, brief
from tvmtune.workers.output import Output
from tvmtune.workers.worker_process import STARTED, Setup

CPUS = allowed_cpus()
"""The CPUs that this process may use. TVM may later bind the session's thread to one of them, when it
runs a kernel there; workers must not inherit that."""

INIT_TIMEOUT = 60.0
"""Seconds for a new worker's initialization, such as that of a GPU's driver."""
TAKE_TIMEOUT = 30.0
"""Seconds for a worker to take a call; one that does not is stopped."""
END_TIMEOUT = 10.0
"""Seconds for a worker that was killed, or that closed its channel, to end."""
ATTEMPTS = 3
"""Workers that may die before they take a call."""


class _NotTaken(Exception):
    """No worker took the call, for ``fault``. ``final``: another attempt would not help."""

    def __init__(self, message: str, fault: faults.Fault, *, final: bool = False) -> None:
        super().__init__(message)
        self.fault = fault
        self.final = final


class Worker:
    """One process that calls functions by name, one after another, for a thread that looks after a
    single thing, such as a board. A process that was killed or died is replaced at the next call.

    ``init`` is called in each new process with ``options``. A process has the environment variables and
    the working directory that the session has when it starts, but prints in English, so that faults are
    recognized. Its temporary files are in ``directory``, and its output, where the system cannot keep
    that in memory. :meth:`stop` and :meth:`close` may be called by another thread while a call runs;
    everything else belongs to one thread.

    Why not TVM's PopenWorker: after each kill it starts an interpreter that imports TVM, 2.2 s where
    a fork takes less than 0.1.
    """

    def __init__(
        self,
        *,
        init: str | None = None,
        options: dict[str, Any] | None = None,
        directory: Path | None = None,
    ) -> None:
        self.calls = 0
        """Calls that the current process has taken."""
        self._init = init
        self._options = dict(options or {})
        self._directory = directory.absolute() if directory else None
        self._output: Output | None = None
        """Of all its processes, once there was one."""
        self._child: forkserver.Child | None = None
        self._channel: Channel | None = None
        self._oom_kills: int | None = None
        """The kernel's count when the process took the last call, or started."""
        self._lock = threading.Lock()
        """Held while :meth:`stop` marks the end, and while a new process is stored."""
        self._closed = False
        # It imports TVM meanwhile. If it cannot be started now, the first call says why.
        with contextlib.suppress(forkserver.NoWorker):
            forkserver.launch()

    def call(self, function: str, arguments: tuple[Any, ...], deadline: float) -> Outcome:
        """The outcome of ``function(*arguments)`` within ``deadline`` seconds from when the process
        takes it, as from :meth:`Workers.collect`; an exception's stage is ``run``. Once closed, every
        call is a ``crash``."""
        request = pickle.dumps((function, arguments))
        try:
            channel = self._begin(request)
        except _NotTaken as failure:
            self.kill()
            if self._closed:
                return Outcome(stage="crash", message="the worker is closed")
            # What a process lacks that has not taken the call is not the call's doing.
            missing: faults.Fault = "start" if failure.fault == "memory" else failure.fault
            return Outcome(stage="crash", message=str(failure), fault=missing)
        self.calls += 1
        try:
            answer = channel.receive(time.monotonic() + deadline)
        except TimeoutError:
            self.kill()
            return Outcome(stage="timeout", message=f"killed after {deadline:g} s")
        except EOFError:
            message, fault = self._why_it_ended()
            self.kill()
            if self._closed:
                return Outcome(stage="crash", message="the worker is closed")
            return Outcome(stage="crash", message=message, fault=fault)
        try:
            ok, value = pickle.loads(answer)
            message, fault = ("", "") if ok else value
        except Exception as error:
            # This process lacks memory, say; or the call wrote into what is not its own.
            self.kill()
            text = f"the worker's answer cannot be read: {brief(error)}"
            return Outcome(stage="run", message=text, fault=faults.of_error(error))
        if ok:
            return Outcome(value=value)
        if fault:
            self.kill()  # it may be the process that has too many open files, or too much memory
        return Outcome(stage="run", message=message, fault=fault)

    def kill(self) -> None:
        """Kill the process, whatever it does."""
        child, channel = self._child, self._channel
        self._child = self._channel = None
        self.calls = 0
        if child is not None:
            child.kill()
            child.wait_dead(END_TIMEOUT)
        if channel is not None:
            channel.close()

    def stop(self) -> None:
        """Kill the process for good, without waiting for its end."""
        with self._lock:
            self._closed = True
            child = self._child
        if child is not None:
            child.kill()

    def wait_dead(self, end: float) -> bool:
        """Whether the process is dead by ``end``, a time of :func:`time.monotonic`."""
        child = self._child
        return child is None or child.wait_dead(max(0.0, end - time.monotonic()))

    def close(self) -> None:
        """Kill the process for good."""
        self.stop()
        self.wait_dead(time.monotonic() + END_TIMEOUT)

    def _begin(self, request: bytes) -> Channel:
        """Have a process take the call. One that was idle may have died meanwhile, or be stopped; that
        is no fault of the call."""
        for attempt in range(ATTEMPTS):
            try:
                channel = self._connect()
                self._clear_output()
                self._oom_kills = oom_kills.count()
                end = time.monotonic() + TAKE_TIMEOUT
                channel.send(request, end)
                if channel.receive(end) == STARTED:
                    return channel
                last = _NotTaken("the worker answers out of turn", "setup")
            except EOFError:
                message, fault = self._why_it_ended()
                last = _NotTaken(message, fault or "setup")
            except TimeoutError:
                last = _NotTaken("the worker does not answer", "setup")
            except _NotTaken as failure:
                last = failure
            except MemoryError:
                last = _NotTaken("the session lacks memory", "memory")
            self.kill()
            if last.final or self._closed or attempt == ATTEMPTS - 1:
                break
        raise last

    def _connect(self) -> Channel:
        if self._channel is None:
            self._channel = self._start()
        return self._channel

    def _start(self) -> Channel:
        """Fork a process and wait until it is set up."""
        self._oom_kills = oom_kills.count()
        mine: socket.socket | None = None
        try:
            if self._output is None:
                self._output = Output(self._directory)
            mine, theirs = socket.socketpair()
            with theirs:
                child = forkserver.fork([theirs.fileno(), self._output.descriptor])
        except (OSError, forkserver.NoWorker) as failure:
            if mine is not None:
                mine.close()
            if isinstance(failure, OSError):
                text, fault = failure.strerror or str(failure), faults.of_error(failure)
            else:
                text, fault = str(failure), failure.fault
            text = f"no worker could be started: {text}"
            raise _NotTaken(text, fault or "setup") from None
        channel = Channel(mine)
        with self._lock:
            self._child, self._channel = child, channel
            if self._closed:
                raise _NotTaken("the worker is closed", "", final=True)
        end = time.monotonic() + INIT_TIMEOUT
        try:
            channel.send(pickle.dumps(self._setup()), end)
            error, fault = pickle.loads(channel.receive(end))
        except TimeoutError:
            what = self._init or "it"
            raise _NotTaken(
                f"the worker could not be set up: {what} did not return within {INIT_TIMEOUT:g} s",
                "setup",
                final=True,
            ) from None
        if error:
            raise _NotTaken(f"the worker could not be set up: {error}", fault, final=True)
        return channel

    def _setup(self) -> Setup:
        try:
            folder = str(Path.cwd())
        except OSError:  # it was removed
            folder = None
        return Setup(
            cpus=CPUS,
            path=list(sys.path),
            # Faults are recognized by the messages of the C library and of compilers.
            environment={**os.environ, "LC_ALL": "C"},
            folder=folder,
            init=self._init,
            options=self._options,
            directory=str(self._directory) if self._directory else None,
        )

    def _why_it_ended(self) -> tuple[str, faults.Fault]:
        """Why the process ended, from its exit code and its last line of output."""
        child = self._child
        if child is None or self._closed:
            return "the worker died", "setup"
        if not child.wait(END_TIMEOUT):
            dead = child.wait_dead(0.0)
            child.kill()
            if dead or not child.wait(END_TIMEOUT):
                # Nobody says how it ended.
                child.server.kill()
                return "the worker died, and the forkserver does not answer", "setup"
            return self._with_output("the worker closed its connection"), ""
        if child.code is None:
            how, fault = child.server.why_it_ended(self._oom_kills)
            return f"the worker died: {how}", fault or "setup"
        text = f"the worker died: {exit_codes.describe(child.code)}"
        fault = faults.of_exit(child.code, self._oom_kills)
        if fault == "memory":
            text += " (out of memory)"
        text = self._with_output(text)
        return text, fault or faults.of_text(text, self._oom_kills)

    def _clear_output(self) -> None:
        if self._output is not None:
            self._output.clear()

    def _with_output(self, text: str) -> str:
        return text if self._output is None else self._output.after(text)
