"""Ctrl-C, or SIGTERM, that cannot get lost.

A KeyboardInterrupt that is raised inside a callback from C++ comes out as another exception, or as
none. So the signal is remembered as well, and asked for where it is safe to stop.
"""

from __future__ import annotations

import signal
import threading
from typing import Any

_pending = False


def install() -> None:
    """Remember SIGINT and SIGTERM from now on; both raise KeyboardInterrupt at once, too."""
    global _pending
    _pending = False
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _remember)
        signal.signal(signal.SIGTERM, _remember)


def pending() -> bool:
    """Whether one of them came since :func:`install`."""
    return _pending


def check() -> None:
    """Raise KeyboardInterrupt if one of them came since :func:`install`."""
    if _pending:
        raise KeyboardInterrupt


def _remember(number: int, frame: Any) -> None:
    global _pending
    _pending = True
    raise KeyboardInterrupt
