"""What a long computation is doing and has decided, for whoever shows it.

Functions deep in the flow report here, so that hooks need no argument for it.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator

Listener = Callable[[str, int, int], None]
"""``(phase, done, total)``; a total of 0 if the phase does not count anything."""

_listener: contextvars.ContextVar[Listener | None] = contextvars.ContextVar(
    "_listener", default=None
)
_reader: contextvars.ContextVar[Callable[[str], None] | None] = contextvars.ContextVar(
    "_reader", default=None
)


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Have ``listener`` receive what this context reports; it is called in the thread that reports."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report(phase: str, done: int = 0, total: int = 0) -> None:
    """Say that ``phase`` has begun, or how much of it is done."""
    listener = _listener.get()
    if listener is not None:
        listener(phase, done, total)


@contextlib.contextmanager
def reading(reader: Callable[[str], None]) -> Iterator[None]:
    """Have ``reader`` receive the notes of this context."""
    token = _reader.set(reader)
    try:
        yield
    finally:
        _reader.reset(token)


def note(text: str) -> None:
    """Say what was decided for the user."""
    reader = _reader.get()
    if reader is not None:
        reader(text)
