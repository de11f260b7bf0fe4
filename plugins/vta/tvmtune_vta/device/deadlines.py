"""Deadlines for whole HTTP messages: a socket's timeout starts anew with each byte that comes."""

from __future__ import annotations

import contextlib
import io
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

SLOW_LINE = 200e3
"""Bytes per second; a body that comes more slowly is given up."""


class DeadlineReader(io.RawIOBase):
    """Reads from a socket until :attr:`end`, on the monotonic clock; then raises TimeoutError."""

    def __init__(self, connection: socket.socket, end: float) -> None:
        self._connection = connection
        self.end = end

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self.end - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


@contextlib.contextmanager
def deadline(connection: socket.socket, seconds: float) -> Iterator[None]:
    """Break ``connection`` after so many seconds, and raise TimeoutError then."""
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, expire)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception:
        if expired.is_set():
            raise TimeoutError("timed out") from None
        raise
    finally:
        timer.cancel()


class Budget:
    """Bytes that all requests together may hold, reserved as they arrive."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._changed = threading.Condition()

    def take(self, size: int, end: float) -> None:
        """Reserve ``size`` bytes; raises TimeoutError if they are not free before ``end``."""
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._free >= size, max(0.0, end - time.monotonic())
            ):
                raise TimeoutError("timed out")
            self._free -= size

    def give_back(self, size: int) -> None:
        with self._changed:
            self._free += size
            self._changed.notify_all()
