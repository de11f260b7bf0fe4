"""Functions that workers call in these tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_ready: dict[str, Any] = {}


def init(options: dict[str, Any]) -> None:
    _ready.update(options)


def initial(name: str) -> Any:
    return _ready[name]


def double(value: int) -> int:
    return 2 * value


def process(*_: int) -> int:
    return os.getpid()


def sleep(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def complain(message: str) -> None:
    raise ValueError(message)


def abort() -> None:
    os.write(2, b"the heap is in pieces\n")
    os.abort()


def touch_address_zero() -> None:
    import ctypes

    ctypes.string_at(0)


def die_by(name: str) -> None:
    os.kill(os.getpid(), getattr(signal, name))


def leave(code: int) -> None:
    os._exit(code)


def chatter() -> None:
    print("on standard output")
    print("on standard error", file=sys.stderr)
    os.write(1, b"straight to the terminal\n")
    sys.stdout.flush()


def start_child_and_wait(note: str) -> None:
    """Keep busy as a builder does whose compiler's driver waits for the compiler; note the numbers of
    their processes, the worker's first."""
    driver = subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    compiler = int(driver.stdout.readline())
    Path(note).write_text(f"{os.getpid()} {driver.pid} {compiler}")
    time.sleep(600)


def leave_behind() -> tuple[int, int]:
    """Start a process that breaks away from this worker's; its number, and the worker's parent's."""
    daemon = subprocess.Popen(["sleep", "600"], start_new_session=True)
    return daemon.pid, os.getppid()


def imported(module: str) -> bool:
    return module in sys.modules
