"""Ctrl-C that cannot get lost.

A KeyboardInterrupt that is raised inside a callback from C++ comes out as another exception, or as
none. So the signal is remembered as well, and asked for where it is safe to stop.
"""

from __future__ import annotations

import signal
import threading
from typing import Any

_pending = False


def install() -> None:
    """Remember SIGINT from now on; it still raises KeyboardInterrupt at once."""
    global _pending
    _pending = False
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _remember)


def pending() -> bool:
    """Whether SIGINT came since :func:`install`."""
    return _pending


def check() -> None:
    """Raise KeyboardInterrupt if SIGINT came since :func:`install`."""
    if _pending:
        raise KeyboardInterrupt


def _remember(number: int, frame: Any) -> None:
    global _pending
    _pending = True
    raise KeyboardInterrupt
