"""Messages between a session and a worker: each is its length in eight bytes, then its bytes."""

from __future__ import annotations

import select
import socket
import struct
import time

_LENGTH = struct.Struct("<Q")
_PART = 1 << 20
_LONGEST = 3600.0
"""Seconds of one wait: the system counts milliseconds in 32 bits."""


class Channel:
    """The session's end. No method waits longer than until ``end``, a time of :func:`time.monotonic`,
    however slowly the other side reads or writes; then it raises TimeoutError. It raises EOFError if
    the other side has closed. A message that is there is received even if its time is over.

    Belongs to one thread. That thread alone closes it: a descriptor that is polled must not be reused.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._poll = select.poll()

    def send(self, message: bytes, end: float) -> None:
        rest = memoryview(_LENGTH.pack(len(message)) + message)
        while rest:
            try:
                rest = rest[self._connection.send(rest) :]
            except BlockingIOError:
                self._wait(select.POLLOUT, end)
            except OSError as error:
                raise EOFError from error

    def receive(self, end: float) -> bytes:
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size, end))
        return self._exactly(length, end)

    def close(self) -> None:
        self._connection.close()

    def _exactly(self, length: int, end: float) -> bytes:
        data = bytearray()
        while len(data) < length:
            try:
                part = self._connection.recv(min(_PART, length - len(data)))
            except BlockingIOError:
                self._wait(select.POLLIN, end)
                continue
            except OSError as error:
                raise EOFError from error
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    def _wait(self, event: int, end: float) -> None:
        left = end - time.monotonic()
        self._poll.register(self._connection, event)
        if not self._poll.poll(min(max(0.0, left), _LONGEST) * 1000) and left <= 0:
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
