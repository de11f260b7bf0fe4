"""A board's entry with a tracker: offered whenever it is free, made anew whenever the tracker is."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable
from typing import Any

from tvmtune import __version__
from tvmtune.farm import protocol
from tvmtune.farm.protocol import Address

FREE_LOOK, BUSY_LOOK = 2.0, 10.0
"""Seconds between two looks at the tracker; seldom while a client is served, who may be measuring."""
UNCLAIMED = 6.0
"""Seconds after which a board is offered anew that the tracker has given away, but nobody came to."""
RETRY = 5.0
"""Seconds between attempts to reach the tracker."""


class Registration:
    """``address``: the host that clients are to connect to, or None for the one that the tracker sees,
    and the port. ``say`` hears of changes."""

    def __init__(
        self,
        tracker: Address,
        key: str,
        address: tuple[str | None, int],
        say: Callable[[str], None],
    ) -> None:
        self.tracker = tracker
        self.key = key
        self._host, self._port = address
        self._say = say
        self._free = False
        self._match = ""
        """What the next client has to know; another one for each, none while the board is not free."""
        self._changed = asyncio.Event()
        self._last_said = ""

    def offer(self) -> None:
        """The board is free."""
        self._free, self._match = True, ""
        self._changed.set()

    def claim(self, match: str) -> bool:
        """Whether a client that says ``match`` is the next; if so, the board is free no more."""
        if not self._match or match != self._match:
            return False
        self._free, self._match = False, ""
        return True

    async def run(self) -> None:
        """For as long as the board is served."""
        while True:
            try:
                reader, writer = await asyncio.wait_for(
                    asyncio.open_connection(self.tracker.host, self.tracker.port), protocol.PATIENCE
                )
                with contextlib.closing(writer):
                    await self._stay(_Line(reader, writer))
            except asyncio.TimeoutError:
                self._once(f"the tracker at {self.tracker} does not answer: trying again")
            except (OSError, EOFError) as error:
                self._once(f"no tracker at {self.tracker} ({_reason(error)}): trying again")
            except (ValueError, TypeError):
                self._once(
                    f"what answers at {self.tracker} is no tracker: trying again. A tracker listens "
                    f"on port {protocol.TRACKER_PORT} unless told otherwise"
                )
            self._match = ""
            await asyncio.sleep(RETRY)

    async def _stay(self, line: _Line) -> None:
        """Returns never; raises what a connection that breaks raises."""
        await line.greet()
        info = {
            "key": f"server:{self.key}",
            "addr": [self._host, self._port],
            protocol.OURS: __version__,
        }
        if await line.call([protocol.UPDATE_INFO, info]) != protocol.SUCCESS:
            raise ValueError("not a tracker")
        self._once(f"registered with the tracker at {self.tracker} as '{self.key}'")
        given: float | None = None
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            if self._free and not self._match:
                match, given = protocol.match_key(self.key), None
                self._match = match  # a client may come before the tracker's answer is read
                offer = [protocol.PUT, self.key, [self._port, match], self._host]
                if await line.call(offer) != protocol.SUCCESS:
                    raise ValueError("not a tracker")
            waiting = await line.call([protocol.PENDING])
            if self._match and self._match not in waiting:
                given = given or loop.time()
                if loop.time() - given > UNCLAIMED:
                    self._say("nobody came for the board: offering it anew")
                    self._match = ""
                    continue
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), FREE_LOOK if self._free else BUSY_LOOK)

    def _once(self, message: str) -> None:
        if message != self._last_said:
            self._say(message)
            self._last_said = message


def _reason(error: Exception) -> str:
    number = getattr(error, "errno", None) or 0
    if number > 0:  # asyncio has a text of its own, that tells less
        return os.strerror(number)
    return getattr(error, "strerror", None) or "it closed the connection"


class _Line:
    """Messages to and from the tracker, each within its deadline."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def greet(self) -> None:
        self._writer.write(protocol.integer(protocol.TRACKER_MAGIC))
        try:
            answer = protocol.read_integer(await self._read(4))
        except EOFError:
            raise ValueError("not a tracker") from None
        if answer != protocol.TRACKER_MAGIC:
            raise ValueError("not a tracker")

    async def call(self, message: Any) -> Any:
        self._writer.write(protocol.pack(message))
        size = protocol.read_integer(await self._read(4))
        if not 0 < size <= protocol.MOST:
            raise ValueError("not a tracker")
        return json.loads(await self._read(size))

    async def _read(self, size: int) -> bytes:
        return await asyncio.wait_for(self._reader.readexactly(size), protocol.PATIENCE)
