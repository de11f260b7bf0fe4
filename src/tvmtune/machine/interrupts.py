"""Ctrl-C and SIGTERM that cannot get lost.

A KeyboardInterrupt raised inside a callback from C++ turns into another exception, or into none. So
the signal is also recorded, and checked where it is safe to stop.
"""

from __future__ import annotations

import signal
import threading
from typing import Any

_pending = False


def install() -> None:
    """Record SIGINT and SIGTERM from now on; both still raise KeyboardInterrupt immediately."""
    global _pending
    _pending = False
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _record)
        signal.signal(signal.SIGTERM, _record)


def pending() -> bool:
    """Whether one of them arrived since :func:`install`."""
    return _pending


def check() -> None:
    """Raise KeyboardInterrupt if one of them arrived since :func:`install`."""
    if _pending:
        raise KeyboardInterrupt


def _record(number: int, frame: Any) -> None:
    global _pending
    _pending = True
    raise KeyboardInterrupt
