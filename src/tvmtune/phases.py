"""What a long computation is doing and has decided, for whoever shows it.

Functions deep in the flow report here, so that hooks need no argument for it.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

Listener = Callable[[str, int, int], None]
"""``(phase, done, total)``; a total of 0 if the phase does not count anything."""

_listener: contextvars.ContextVar[Listener | None] = contextvars.ContextVar(
    "_listener", default=None
)
_reader: contextvars.ContextVar[Callable[[str], None] | None] = contextvars.ContextVar(
    "_reader", default=None
)


def listening(listener: Listener) -> AbstractContextManager[None]:
    """Have ``listener`` receive what this context reports; it is called in the thread that reports."""
    return _set(_listener, listener)


def report(phase: str, done: int = 0, total: int = 0) -> None:
    """Say that ``phase`` has begun, or how much of it is done."""
    listener = _listener.get()
    if listener is not None:
        listener(phase, done, total)


def reading(reader: Callable[[str], None]) -> AbstractContextManager[None]:
    """Have ``reader`` receive the notes of this context."""
    return _set(_reader, reader)


def note(text: str) -> None:
    """Say what was decided for the user."""
    reader = _reader.get()
    if reader is not None:
        reader(text)


@contextlib.contextmanager
def _set(variable: contextvars.ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
