"""What runs in a worker."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from typing import Any

from tvmtune.machine import faults, oom_kills
from tvmtune.workers import channel
from tvmtune.workers.outcome import brief, resolve

STARTED = b"started"
"""Sent when a call was received: from here on a failure is the call's."""

_child_reaper: subprocess.Popen[bytes] | None = None
"""The process that kills this worker's children once it has ended."""


@dataclass(frozen=True)
class Setup:
    """How a worker is set up."""

    cpus: list[int]
    path: list[str]
    """Python's ``sys.path``."""
    environment: dict[str, str]
    """Its environment variables, in place of those that the forkserver was started with."""
    folder: str | None = None
    """Its working directory; by default the forkserver's."""
    init: str | None = None
    """``"package.module:function"``, called once with ``options``."""
    options: dict[str, Any] = field(default_factory=dict)
    directory: str | None = None
    """For its temporary files, and those of what it starts; by default the session's."""


def main(connection: socket.socket, output: int) -> None:
    """Set the worker up, then make calls until the session closes ``connection``.

    The first message is a :class:`Setup`, and the answer its error, empty if there was none. Then each
    call ``(function, arguments)`` is answered by :data:`STARTED` and by a value (``True, value``) or an
    error (``False, (message, fault)``). ``output``: the file for everything that it prints.
    """
    for printed in (1, 2):
        os.dup2(output, printed)
    os.close(output)
    error = ""
    fault: faults.Fault = ""
    kills = oom_kills.count()
    try:
        _set_up(pickle.loads(channel.receive(connection)))
    except Exception as failure:
        error, fault = brief(failure), faults.of_error(failure, kills) or "setup"
    channel.send(connection, pickle.dumps((error, fault)))
    while True:
        request = channel.receive(connection)
        kills = oom_kills.count()
        channel.send(connection, STARTED)
        try:
            function, arguments = pickle.loads(request)
            answer = pickle.dumps((True, resolve(function)(*arguments)))
        except Exception as failure:
            # TVM's exceptions do not survive pickling; their text is what matters.
            answer = pickle.dumps((False, (brief(failure), faults.of_error(failure, kills))))
        channel.send(connection, answer)


def _set_up(setup: Setup) -> None:
    """Ignore Ctrl-C, be like the session now, not like it was when the forkserver was started, use all
    CPUs, initialize."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(setup.environment)
    if setup.folder is not None:
        with contextlib.suppress(OSError):  # it is gone; nothing that tvmtune does needs it
            os.chdir(setup.folder)
    _start_child_reaper()
    sys.path[:] = setup.path
    tempfile.tempdir = setup.directory  # if None, Python looks for it again
    if setup.directory is not None:
        # A process that is killed, or that LLVM ends, leaves files behind: the session removes them.
        os.environ["TMPDIR"] = setup.directory
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, setup.cpus)
    if setup.init is not None:
        resolve(setup.init)(setup.options)


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
