"""A board's registration with a tracker.

The board is offered whenever it is free, and registers again after a tracker restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Any

from tvmtune import bounded
from tvmtune.remote import access, protocol
from tvmtune.remote.protocol import Address
from tvmtune.version import __version__

FREE_POLL_INTERVAL, BUSY_POLL_INTERVAL = 2.0, 10.0
"""Seconds between two queries of the tracker; rare while a client, who may be measuring, is served."""
UNCLAIMED = 6.0
"""Seconds after which a board is offered again if the tracker granted it but no client connected."""
RETRY_INTERVAL = 5.0
"""Seconds between attempts to reach the tracker."""


class Registration:
    """Keeps a board registered. ``address``: the host that clients should connect to, or None for the
    one that the tracker sees, and the port. ``report`` receives changes."""

    def __init__(
        self,
        tracker: Address,
        key: str,
        address: tuple[str | None, int],
        report: Callable[[str], None],
        secret: bytes | None = None,
    ) -> None:
        self.tracker = tracker
        self._secret = secret
        self.key = key
        self._host, self._port = address
        self._report = report
        self._free = False
        self._match = ""
        """The key that the next client must send; new for each client, empty while the board is not
        free."""
        self._changed = asyncio.Event()
        self._last_report = ""

    def offer(self) -> None:
        """Mark the board as free."""
        self._free, self._match = True, ""
        self._changed.set()

    def claim(self, match: str) -> bool:
        """Whether ``match``, with its proof if there is a secret, admits the next client; if so, the
        board is no longer free."""
        if not self._match:
            return False
        if not access.matches(match.encode(), access.ticket(self._secret, self._match).encode()):
            return False
        self._free, self._match = False, ""
        return True

    async def run(self) -> None:
        """Run for as long as the board is served."""
        while True:
            try:
                reader, writer = await asyncio.wait_for(
                    asyncio.open_connection(self.tracker.host, self.tracker.port),
                    protocol.REPLY_TIMEOUT,
                )
                with contextlib.closing(writer):
                    await self._stay_registered(_Connection(self.tracker, reader, writer))
            except asyncio.TimeoutError:
                self._report_once(f"the tracker at {self.tracker} does not answer: trying again")
            except (OSError, EOFError) as error:
                self._report_once(
                    f"no tracker at {self.tracker} ({_errno_text(error)}): trying again"
                )
            except _Refused as refused:
                self._report_once(f"{str(refused).rstrip('.')}: trying again")
            except (ValueError, TypeError):
                self._report_once(
                    f"what answers at {self.tracker} is not a tracker: trying again. A tracker listens "
                    f"on port {protocol.TRACKER_PORT} by default"
                )
            self._match = ""
            await asyncio.sleep(RETRY_INTERVAL)

    async def _stay_registered(self, connection: _Connection) -> None:
        """Never returns; raises the error of a connection that breaks."""
        await connection.greet(self._secret)
        info = {
            "key": f"server:{self.key}",
            "addr": [self._host, self._port],
            protocol.OURS: __version__,
        }
        if await connection.call([protocol.UPDATE_INFO, info]) != protocol.SUCCESS:
            raise ValueError("not a tracker")
        self._report_once(f"registered with the tracker at {self.tracker} as '{self.key}'")
        granted: float | None = None
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            if self._free and not self._match:
                match, granted = protocol.match_key(self.key), None
                self._match = match  # a client may come before the tracker's answer is read
                offer = [protocol.PUT, self.key, [self._port, match], self._host]
                if await connection.call(offer) != protocol.SUCCESS:
                    raise ValueError("not a tracker")
            waiting = await connection.call([protocol.PENDING])
            if self._match and self._match not in waiting:
                granted = granted or loop.time()
                if loop.time() - granted > UNCLAIMED:
                    self._report("no client came for the board: offering it again")
                    self._match = ""
                    continue
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(
                    self._changed.wait(), FREE_POLL_INTERVAL if self._free else BUSY_POLL_INTERVAL
                )

    def _report_once(self, message: str) -> None:
        if message != self._last_report:
            self._report(message)
            self._last_report = message


def _errno_text(error: Exception) -> str:
    number = getattr(error, "errno", None) or 0
    if number > 0:  # asyncio's own text is less clear
        return os.strerror(number)
    return getattr(error, "strerror", None) or "it closed the connection"


class _Refused(Exception):
    """The tracker has a secret and this board another or none, or the other way round."""


class _Connection:
    """Messages to and from the tracker; each exchange has one deadline."""

    def __init__(
        self, tracker: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._name = protocol.tracker_at(tracker)
        self._reader = reader
        self._writer = writer

    async def greet(self, secret: bytes | None) -> None:
        await asyncio.wait_for(self._greet(secret), protocol.REPLY_TIMEOUT)

    async def call(self, message: Any) -> Any:
        return await asyncio.wait_for(self._call(message), protocol.REPLY_TIMEOUT)

    async def _greet(self, secret: bytes | None) -> None:
        if secret is not None:
            await self._prove(access.Caller(secret))
        self._writer.write(protocol.integer(protocol.TRACKER_MAGIC))
        try:
            answer = protocol.read_integer(await self._reader.readexactly(4))
        except EOFError:
            raise ValueError("not a tracker") from None
        if answer == access.SECRET_NEEDED:
            raise _Refused(protocol.secret_needed(self._name))
        if answer != protocol.TRACKER_MAGIC:
            raise ValueError("not a tracker")

    async def _prove(self, caller: access.Caller) -> None:
        self._writer.write(caller.hello())
        try:
            answer = await self._reader.readexactly(4)
            if protocol.read_integer(answer) != access.HELLO:
                raise ConnectionResetError
        except (OSError, EOFError):
            raise _Refused(protocol.no_secret_there(self._name)) from None
        answer += await self._reader.readexactly(access.ANSWER_BYTES - 4)
        with contextlib.suppress(access.WrongSecret):
            self._writer.write(caller.reply(answer))
            if protocol.read_integer(await self._reader.readexactly(4)) == access.HELLO:
                return
        raise _Refused(protocol.other_secret(self._name))

    async def _call(self, message: Any) -> Any:
        self._writer.write(protocol.pack(message))
        size = protocol.read_integer(await self._reader.readexactly(4))
        if not 0 < size <= protocol.MAX_MESSAGE_BYTES:
            raise ValueError("not a tracker")
        return bounded.parse_json(await self._reader.readexactly(size))
