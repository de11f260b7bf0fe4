"""TVM's RPC tracker under supervision: it is looked at every few seconds, and started again if it has
died or does not answer. Boards served by tvmtune register again by themselves.

The supervisor holds the port, so that it stays taken meanwhile. ``python -m tvmtune.farm.tracker FD
PARENT`` is the tracker itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable

from tvmtune import torchless
from tvmtune.errors import TvmtuneError
from tvmtune.farm.ending import LATER, end
from tvmtune.farm.protocol import Address, Tracker, listen

LOOK = 5.0
"""Seconds between two looks."""
START = 60.0
"""Seconds in which a tracker has to answer first: it imports TVM."""
PATIENCE = 3.0
"""Seconds for an answer to a look."""
MISSED = 2
"""Looks without an answer after which it is started again."""


class Supervised:
    """A tracker; ``say`` hears of what happens, a line at a time.

    Raises :class:`TvmtuneError` if the port is in use, or if TVM cannot be imported.
    """

    def __init__(self, address: Address, say: Callable[[str], None]) -> None:
        self._listener = listen(address.host, range(address.port, address.port + 1))
        self.address = address
        self.say = say
        self._process: asyncio.subprocess.Process | None = None

    async def run(self) -> None:
        """Until SIGINT, SIGTERM or SIGHUP."""
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stopping.set)
        with contextlib.closing(self._listener):
            work = asyncio.create_task(self._work())
            stop = asyncio.create_task(stopping.wait())
            await asyncio.wait([work, stop], return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            await end([work], LATER)
            with contextlib.suppress(asyncio.CancelledError):
                await work

    async def _work(self) -> None:
        try:
            await self._start()
            self.say(f"the tracker listens at {self.address}")
            while True:
                await self._fail()
                self.say("the tracker had died, or did not answer: starting it again")
                await self._end()
                try:
                    await self._start()
                except (TvmtuneError, OSError) as error:
                    self.say(f"{error} Trying again")
                    await asyncio.sleep(LOOK)
        finally:
            await self._end()

    async def _fail(self) -> None:
        """Return once the tracker is to be started again."""
        assert self._process is not None
        missed = 0
        while missed < MISSED:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._process.wait(), LOOK)
                return
            missed = 0 if await self._answers() else missed + 1

    async def _start(self) -> None:
        descriptor = self._listener.fileno()
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tvmtune.farm.tracker", str(descriptor), str(os.getpid())),
            pass_fds=[descriptor],
            stdin=asyncio.subprocess.DEVNULL,
        )
        deadline = asyncio.get_running_loop().time() + START
        while not await self._answers():
            if self._process.returncode is not None:
                raise TvmtuneError("TVM's tracker could not be started: see above.")
            if asyncio.get_running_loop().time() > deadline:
                raise TvmtuneError(f"TVM's tracker did not answer within {START:.0f} s.")
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._process.wait(), 0.2)

    async def _answers(self) -> bool:
        return await asyncio.to_thread(_answers, _reachable(self.address))

    async def _end(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


def _answers(address: Address) -> bool:
    try:
        with Tracker(address, patience=PATIENCE) as tracker:
            tracker.summary()
    except TvmtuneError:
        return False
    return True


def _reachable(address: Address) -> Address:
    """Where this machine finds it: one that listens everywhere does so here, too."""
    own = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}
    return Address(own.get(address.host, address.host), address.port)


def main(descriptor: int, parent: int) -> None:
    """The tracker itself, which listens at a socket that it was handed."""
    import logging

    from tvmtune.farm.nursery import die_with

    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        from tvm.rpc import tracker
    except Exception as error:
        print(f"TVM cannot be imported: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
    tracker.logger.setLevel(logging.WARNING)
    logging.getLogger("tornado").setLevel(logging.CRITICAL)  # garbage that it was sent
    tracker._tracker_server(socket.socket(fileno=descriptor), str(os.urandom(8).hex()))


if __name__ == "__main__":
    torchless.install()
    main(int(sys.argv[1]), int(sys.argv[2]))
