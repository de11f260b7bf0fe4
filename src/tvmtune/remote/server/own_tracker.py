"""A server that is registered with no tracker is its own: it answers a tracker's messages at its port.

So clients need no tracker for a single board, as behind an SSH tunnel, and know it by one address only:
that at which they reach it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from tvmtune import bounded
from tvmtune.remote import access, protocol
from tvmtune.remote.server.registration import UNCLAIMED
from tvmtune.version import __version__

IDLE_TIMEOUT = 60.0
"""Seconds within which a client must send its next message."""
MAX_CONVERSATIONS = 128
"""Clients that talk or wait at once; more are turned away."""

Leaves = Callable[[socket.socket], Any]


class OwnTracker:
    """Grants one board to one client after the other, in the order of their requests.

    ``refusal`` is the answer to all of them if another tracker does that. ``leaves`` is a coroutine
    function that returns once the other side of a socket has closed.
    """

    def __init__(self, key: str, secret: bytes | None, refusal: str, leaves: Leaves) -> None:
        self._key, self._secret, self._refusal, self._leaves = key, secret, refusal, leaves
        self._free = False
        self._match = ""
        """The key that the next client must send; empty if nobody was granted the board."""
        self._waiting: deque[asyncio.Future[str]] = deque()
        self._talking: set[asyncio.Task[None]] = set()

    def offer(self) -> None:
        """Mark the board as free."""
        self._free, self._match = True, ""
        self._grant()

    def take(self) -> None:
        """Mark it as in use, by a client that knew its key."""
        self._free = False

    def claim(self, match: str) -> bool:
        """Whether ``match``, with its proof if there is a secret, admits the next client; if so, the
        board is no longer free."""
        expected = access.ticket(self._secret, self._match)
        if not self._match or not access.matches(match.encode(), expected.encode()):
            return False
        self._free, self._match = False, ""
        return True

    def talk(self, connection: socket.socket, first: bytes) -> None:
        """Answer a client from now on, whose ``first`` four bytes have been read."""
        if len(self._talking) >= MAX_CONVERSATIONS:
            connection.close()
            return
        task = asyncio.create_task(self._talk(connection, first))
        self._talking.add(task)
        task.add_done_callback(self._talking.discard)

    def close(self) -> None:
        for task in self._talking:
            task.cancel()

    async def _talk(self, connection: socket.socket, first: bytes) -> None:
        with (
            contextlib.closing(connection),
            contextlib.suppress(OSError, ValueError, LookupError, TypeError, asyncio.TimeoutError),
        ):
            if not await asyncio.wait_for(self._greet(connection, first), protocol.REPLY_TIMEOUT):
                return
            while True:
                message = await asyncio.wait_for(_message(connection), IDLE_TIMEOUT)
                answer = await self._answer(message, connection)
                if answer is None:
                    return
                await asyncio.wait_for(
                    _send(connection, protocol.pack(answer)), protocol.REPLY_TIMEOUT
                )

    async def _greet(self, connection: socket.socket, first: bytes) -> bool:
        loop = asyncio.get_running_loop()
        if self._secret is not None:
            gate, data = access.Gate(self._secret), first
            while True:
                if answer := gate.receive(data):
                    await _send(connection, answer)
                if gate.is_open or gate.refused:
                    break
                if not (data := await loop.sock_recv(connection, 1 << 10)):
                    return False
            if gate.refused or len(gate.rest) > 4:
                return False
            first = gate.rest + await exactly(connection, 4 - len(gate.rest))
        if protocol.read_integer(first) != protocol.TRACKER_MAGIC:
            return False
        await _send(connection, protocol.integer(protocol.TRACKER_MAGIC))
        return True

    async def _answer(self, message: Any, connection: socket.socket) -> Any:
        """The answer to a message; None for one that ends the conversation."""
        code = message[0]
        if code in (
            protocol.UPDATE_INFO,
            protocol.PUT,
        ):  # from a server that takes this for a tracker
            return [protocol.FAIL, "this is a board"]
        if self._refusal and code in (protocol.SUMMARY, protocol.REQUEST):
            return [protocol.FAIL, self._refusal]
        host, port = connection.getsockname()[:2]
        if code == protocol.SUMMARY:
            info: dict[str, Any] = {
                "key": f"server:{self._key}",
                "addr": [host, port],
                protocol.OURS: __version__,
            }
            free = int(self._free and not self._match)
            queue = {self._key: {"free": free, "pending": len(self._waiting)}}
            info[protocol.DIRECT] = True
            return [protocol.SUCCESS, {"queue_info": queue, "server_info": [info]}]
        if code == protocol.REQUEST and message[1] == self._key:
            match = await self._request(connection)
            return match and [protocol.SUCCESS, [host, port, match], protocol.DIRECT]
        return None

    async def _request(self, connection: socket.socket) -> str | None:
        """A match key, as soon as the board is free; None if the client leaves before."""
        granted: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        left = asyncio.ensure_future(self._leaves(connection))
        self._waiting.append(granted)
        self._grant()
        try:
            await asyncio.wait([granted, left], return_when=asyncio.FIRST_COMPLETED)
            return granted.result() if granted.done() else None
        finally:
            left.cancel()
            with contextlib.suppress(ValueError):
                self._waiting.remove(granted)

    def _grant(self) -> None:
        """Give the board, if it is free, to the first who waits, for as long as they may take."""
        while self._free and not self._match and self._waiting:
            granted = self._waiting.popleft()
            if granted.done():
                continue
            self._match = protocol.match_key(self._key)
            granted.set_result(self._match)
            asyncio.get_running_loop().call_later(UNCLAIMED, self._withdraw, self._match)

    def _withdraw(self, match: str) -> None:
        if self._match == match:
            self._match = ""
            self._grant()


async def exactly(connection: socket.socket, size: int) -> bytes:
    """So many bytes of a non-blocking socket; raises OSError if the other side closes before."""
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < size:
        part = await loop.sock_recv(connection, size - len(data))
        if not part:
            raise ConnectionResetError
        data += part
    return data


async def _message(connection: socket.socket) -> Any:
    size = protocol.read_integer(await exactly(connection, 4))
    if not 0 < size <= protocol.LONGEST_GREETING:
        raise ValueError("not a client")
    return bounded.parse_json(await exactly(connection, size))


async def _send(connection: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(connection, data)
