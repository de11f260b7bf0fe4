"""Functions that a board registers for clients that run libraries there.

``tvmtune serve`` loads this module in a session when its client asks for it
(:func:`tvmtune.remote.server.session.provide`); the client is :mod:`tvmtune.runtime.remote_session`.
The board then runs the same code as this machine would: :mod:`tvmtune.machine.threads` sets TVM's
thread pool, and the wall clock times calls as in :class:`tvmtune.runtime.session.LocalSession`.
"""

from __future__ import annotations

import time
from typing import Any

from tvmtune.machine import threads
from tvmtune.runtime import timing
from tvmtune.runtime.session import ENTRY

MODULE = __name__
SHARE, REST, TIME = (f"tvmtune.board.{name}" for name in ("share", "rest", "time"))


def register() -> None:
    """Register the functions under the names above."""
    import tvm_ffi

    for name, function in ((SHARE, threads.share), (REST, timing.rest), (TIME, _time)):
        tvm_ffi.register_global_func(name, function, override=True)


def _time(machine: Any, count: int) -> float:
    """Seconds that ``count`` calls of the virtual machine's entry function take."""
    run = machine["invoke_stateful"]
    start = time.perf_counter()
    for _ in range(count):
        run(ENTRY)
    return time.perf_counter() - start
