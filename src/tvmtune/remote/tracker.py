"""TVM's RPC tracker and its supervisor, which restarts it if it dies or stops answering.

Boards served by tvmtune then register again by themselves. The supervisor holds the port, so that it
stays taken during a restart. ``python -m tvmtune.remote.tracker FD PARENT`` is the tracker itself.

Why not ``tvm.exec.rpc_tracker`` under systemd: once it has run out of file descriptors, TVM's tracker
retries ``accept`` forever and answers nobody again, even after all clients have left (TVM 0.27;
``ulimit -n 64`` and 60 connections show it). It hangs but does not exit, so ``Restart=`` does not
help. And a killed ``rpc_tracker`` leaves a process behind that keeps the port.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable

from tvmtune import block_torch_import
from tvmtune.errors import TvmtuneError
from tvmtune.remote.protocol import Address, Tracker, listen
from tvmtune.remote.termination import CLEANUP_CANCEL_INTERVAL, end

POLL_INTERVAL = 5.0
"""Seconds between two health checks."""
START_TIMEOUT = 60.0
"""Seconds within which a new tracker must answer; it imports TVM first."""
PING_TIMEOUT = 3.0
"""Seconds for the answer to a health check."""
MAX_FAILED_CHECKS = 2
"""Unanswered checks in a row after which it is restarted."""


class TrackerSupervisor:
    """Runs a tracker; ``report`` receives one line per event.

    Raises :class:`TvmtuneError` if the port is in use, or if TVM cannot be imported.
    """

    def __init__(self, address: Address, report: Callable[[str], None]) -> None:
        self._listener = listen(address.host, range(address.port, address.port + 1))
        self.address = address
        self.report = report
        self._process: asyncio.subprocess.Process | None = None

    async def run(self) -> None:
        """Run until SIGINT, SIGTERM or SIGHUP."""
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stopping.set)
        with contextlib.closing(self._listener):
            work = asyncio.create_task(self._work())
            stop = asyncio.create_task(stopping.wait())
            await asyncio.wait([work, stop], return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            await end([work], CLEANUP_CANCEL_INTERVAL)
            with contextlib.suppress(asyncio.CancelledError):
                await work

    async def _work(self) -> None:
        try:
            await self._start()
            self.report(f"the tracker listens at {self.address}")
            while True:
                await self._failure()
                self.report("the tracker died or stopped answering: restarting it")
                await self._end()
                try:
                    await self._start()
                except (TvmtuneError, OSError) as error:
                    self.report(f"{error} Trying again")
                    await asyncio.sleep(POLL_INTERVAL)
        finally:
            await self._end()

    async def _failure(self) -> None:
        """Wait until the tracker has died or stopped answering."""
        assert self._process is not None
        missed = 0
        while missed < MAX_FAILED_CHECKS:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._process.wait(), POLL_INTERVAL)
                return
            missed = 0 if await self._answers() else missed + 1

    async def _start(self) -> None:
        descriptor = self._listener.fileno()
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tvmtune.remote.tracker", str(descriptor), str(os.getpid())),
            pass_fds=[descriptor],
            stdin=asyncio.subprocess.DEVNULL,
        )
        deadline = asyncio.get_running_loop().time() + START_TIMEOUT
        while not await self._answers():
            if self._process.returncode is not None:
                raise TvmtuneError("TVM's tracker could not be started: see above")
            if asyncio.get_running_loop().time() > deadline:
                raise TvmtuneError(f"TVM's tracker did not answer within {START_TIMEOUT:.0f} s")
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
        with Tracker(address, patience=PING_TIMEOUT) as tracker:
            tracker.summary()
    except TvmtuneError:
        return False
    return True


def _reachable(address: Address) -> Address:
    """The address to connect to from this machine, for one to listen at."""
    loopback = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}
    return Address(loopback.get(address.host, address.host), address.port)


def main(descriptor: int, parent: int) -> None:
    """The tracker itself, on the listening socket ``descriptor`` inherited from the supervisor."""
    import logging

    from tvmtune.remote import access
    from tvmtune.remote.server.forkserver_process import die_with

    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        from tvm.rpc import tracker

        from tvmtune.remote import tracker_gate
    except Exception as error:
        print(f"TVM cannot be imported: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
    tracker_gate.install(access.secret())
    tracker.logger.setLevel(logging.WARNING)
    logging.getLogger("tornado").setLevel(logging.CRITICAL)  # it logs garbage from clients
    tracker._tracker_server(socket.socket(fileno=descriptor), str(os.urandom(8).hex()))


if __name__ == "__main__":
    block_torch_import.install()
    os.environ["TVM_USE_RUNTIME_LIB"] = "1"  # starts in half the time without the compiler
    main(int(sys.argv[1]), int(sys.argv[2]))
