"""What the workers of these tests are told to do."""

from __future__ import annotations

import os
import signal
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
    """Note the processes of this worker, then keep busy."""
    Path(note).write_text(str(os.getpid()))
    time.sleep(600)


def imported(module: str) -> bool:
    return module in sys.modules
