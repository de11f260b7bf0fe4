"""Messages between a session and a worker: each is its length in eight bytes, then its bytes."""

from __future__ import annotations

import select
import socket
import struct
import time

_LENGTH = struct.Struct("<Q")
_PART = 1 << 20
_SLICE = 1.0
"""Seconds of one wait. One that takes much longer shows that this process was stopped."""
_STOPPED = 1.0
"""Seconds by which a wait is late in a process that was stopped."""


class Channel:
    """The session's end. No method waits longer than until ``end``, a time of :func:`time.monotonic`,
    however slowly the other side reads or writes; then it raises TimeoutError. It raises EOFError if
    the other side has closed. A message that is there is received even if its time is over. While this
    process is stopped, in a frozen container, say, no time passes: the other side is stopped as well.

    Belongs to one thread. That thread alone closes it: a descriptor that is polled must not be reused.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._end = 0.0
        """Of the present call; later if this process was stopped."""
        self._poll = select.poll()

    def send(self, message: bytes, end: float) -> None:
        self._end = end
        rest = memoryview(_LENGTH.pack(len(message)) + message)
        while rest:
            try:
                rest = rest[self._connection.send(rest) :]
            except BlockingIOError:
                self._wait(select.POLLOUT)
            except OSError as error:
                raise EOFError from error

    def receive(self, end: float) -> bytes:
        self._end = end
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        return self._exactly(length)

    def close(self) -> None:
        self._connection.close()

    def _exactly(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            try:
                part = self._connection.recv(min(_PART, length - len(data)))
            except BlockingIOError:
                self._wait(select.POLLIN)
                continue
            except OSError as error:
                raise EOFError from error
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    def _wait(self, event: int) -> None:
        began = time.monotonic()
        left = self._end - began
        wait = min(max(0.0, left), _SLICE)
        self._poll.register(self._connection, event)
        if self._poll.poll(wait * 1000):
            return
        late = time.monotonic() - began - wait
        if late > _STOPPED:
            self._end += late
        elif left <= 0:
            raise TimeoutError


def send(connection: socket.socket, message: bytes) -> None:
    """The worker's end: waits as long as it takes."""
    connection.sendall(_LENGTH.pack(len(message)) + message)


def receive(connection: socket.socket) -> bytes:
    """The worker's end: waits as long as it takes. Raises EOFError if the session has ended."""
    (length,) = _LENGTH.unpack(_all(connection, _LENGTH.size))
    return _all(connection, length)


def _all(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        part = connection.recv(min(_PART, length - len(data)))
        if not part:
            raise EOFError
        data += part
    return bytes(data)
