"""A board's server: it lets clients in, one at a time, and outlives whatever they do.

Three kinds of processes. The *supervisor* (this module) holds the port and the connection to the
tracker; it imports no TVM and runs nothing of anybody's. The *nursery* (nursery.py) has imported TVM
and does nothing but fork. Each *session* is a fork of it, in a process group of its own: it may abort,
hang or leak, and is ended as a group when its client leaves, when its time is over, or with the
supervisor.

The protocol is TVM's (protocol.py), so stock clients and trackers are served as well. Greetings are
answered while a session runs: a client can tell a board at work from a dead one.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tvmtune.errors import TvmtuneError
from tvmtune.farm import protocol
from tvmtune.farm.ending import LATER, end
from tvmtune.farm.protocol import LOCAL, SERVER_PORTS, Address
from tvmtune.farm.registration import Registration
from tvmtune.farm.sessions import Nursery, Session, scratch

GREETING = 10.0
"""Seconds in which a client has to have said who it is."""
GREETERS = 128
"""Connections that may be about to do so; the oldest has to go where there are more."""
FAREWELL = 1.0
"""Seconds that a session has to end by itself once its client has gone."""
RETRY = 5.0
"""Seconds between attempts at what should not fail."""


@dataclass
class Serving:
    """How a board is served."""

    key: str
    host: str = LOCAL
    ports: range = SERVER_PORTS
    tracker: Address | None = None
    custom_address: str | None = None
    """What clients are to connect to, where the tracker sees another address."""
    nursery: dict[str, Any] = field(default_factory=dict)
    """What sessions need: see :func:`tvmtune.farm.board.prepare`."""


@dataclass
class _Client:
    connection: socket.socket
    address: str
    timeout: float | None


class Server:
    """Serves until :meth:`stop`; ``say`` hears of what happens, a line at a time.

    Raises :class:`TvmtuneError` if no port is free or TVM cannot be imported.
    """

    def __init__(self, serving: Serving, say: Callable[[str], None]) -> None:
        self.serving = serving
        self.say = say
        self._listener = protocol.listen(serving.host, serving.ports)
        self.port: int = self._listener.getsockname()[1]

    async def run(self) -> None:
        """Until :meth:`stop`, SIGINT, SIGTERM or SIGHUP."""
        self._stopping = asyncio.Event()
        self._clients: asyncio.Queue[_Client] = asyncio.Queue()
        self._registration: Registration | None = None
        if self.serving.tracker is not None:
            self._registration = Registration(
                self.serving.tracker,
                self.serving.key,
                (self.serving.custom_address, self.port),
                self.say,
            )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.stop)
        with contextlib.closing(self._listener), scratch() as folder:
            work = asyncio.create_task(self._work(self.serving.nursery | {"folder": str(folder)}))
            stop = asyncio.create_task(self._stopping.wait())
            await asyncio.wait([work, stop], return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            await end([work], LATER)
            with contextlib.suppress(asyncio.CancelledError):
                await work

    def stop(self) -> None:
        """End the session that runs, if any, and :meth:`run`."""
        self._stopping.set()

    async def _work(self, options: dict[str, Any]) -> None:
        async with Nursery(options) as nursery:
            where = Address(self.serving.host, self.port)
            self.say(
                f"serving '{self.serving.key}' at {where}, TVM {nursery.versions['apache-tvm']}"
            )
            tasks = [
                asyncio.create_task(self._accept()),
                asyncio.create_task(self._serve(nursery)),
            ]
            if self._registration is not None:
                tasks.append(asyncio.create_task(self._registration.run()))
            try:
                await asyncio.gather(*tasks)
            finally:
                await end(tasks)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        greeting: dict[asyncio.Task[None], None] = {}  # a set that remembers the order
        try:
            while True:
                try:
                    connection, address = await loop.sock_accept(self._listener)
                except OSError as error:  # too many open files, say: those who are here may leave
                    self.say(f"cannot accept a connection: {error.strerror}")
                    await asyncio.sleep(RETRY)
                    continue
                if len(greeting) >= GREETERS:
                    oldest = next(iter(greeting))
                    del greeting[oldest]
                    oldest.cancel()
                task = asyncio.create_task(self._greet(connection, str(Address(*address[:2]))))
                greeting[task] = None
                task.add_done_callback(lambda done: greeting.pop(done, None))
                await asyncio.sleep(0)  # a crowd at the door keeps nobody inside from talking
        finally:
            for task in list(greeting):
                task.cancel()

    async def _greet(self, connection: socket.socket, address: str) -> None:
        """Find out who that is; only one who knows the key stays connected."""
        connection.setblocking(False)
        admitted = False
        try:
            words = await asyncio.wait_for(_read_greeting(connection), GREETING)
            if self._admit(words[0] if words else ""):
                admitted = True
                await self._clients.put(_Client(connection, address, _timeout(words[1:])))
            else:
                connection.send(protocol.integer(protocol.MISMATCH))
        except (OSError, ValueError, asyncio.TimeoutError):
            pass  # it left, or is none of TVM's clients
        finally:
            if not admitted:
                connection.close()

    def _admit(self, who: str) -> bool:
        if self._registration is not None:
            return self._registration.claim(who.removeprefix("client:"))
        return who == f"client:{self.serving.key}"

    async def _serve(self, nursery: Nursery) -> None:
        while True:
            await self._prepare(nursery)
            if self._registration is not None and self._clients.empty():
                self._registration.offer()
            client = await self._clients.get()
            with contextlib.closing(client.connection):
                if not _has_left(client.connection):
                    await self._session(nursery, client)

    async def _prepare(self, nursery: Nursery) -> None:
        """Have the nursery ready before the board is offered."""
        while True:
            try:
                await nursery.ensure()
            except (TvmtuneError, OSError) as error:
                self.say(f"{error} Trying again in {RETRY:.0f} s")
                await asyncio.sleep(RETRY)
            else:
                return

    async def _session(self, nursery: Nursery, client: _Client) -> None:
        loop = asyncio.get_running_loop()
        own = f"server:{self.serving.key}".encode()
        answer = protocol.integer(protocol.ACCEPTED) + protocol.integer(len(own)) + own
        try:
            _keep_alive(client.connection)
            await asyncio.wait_for(loop.sock_sendall(client.connection, answer), GREETING)
            client.connection.setblocking(True)  # TVM expects it; the session shares this
        except (OSError, asyncio.TimeoutError):
            return
        try:
            session = await nursery.begin(client.connection)
        except (OSError, TvmtuneError, asyncio.TimeoutError) as error:
            why = f"the board cannot start a session: {str(error) or 'it took too long'}"
            self.say(f"client {client.address}: {why}")
            await nursery.answer(client.connection, why)
            return
        self.say(f"client {client.address}")
        try:
            why = await self._watch(session, client)
        finally:
            session.kill()
        if why and not _has_left(client.connection):
            await nursery.answer(client.connection, why)
        self.say(f"client {client.address} is done" + (f": {why}" if why else ""))

    async def _watch(self, session: Session, client: _Client) -> str:
        """Wait for the end of a session; returns what its client has to be told, if anything."""
        left = asyncio.create_task(_leaves(client.connection))
        try:
            ends: list[asyncio.Future[Any]] = [session.ended, left]
            done, _ = await asyncio.wait(
                ends, timeout=client.timeout, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                return (
                    f"RPCSessionTimeoutError: the {client.timeout:g} s of this session are over; "
                    "ask for more with session_timeout"
                )
            if not session.ended.done():
                await asyncio.wait([session.ended], timeout=FAREWELL)
        finally:
            left.cancel()
        if session.ended.done():
            return session.ended.result()
        return "its client left while it was at work"


async def _read_greeting(connection: socket.socket) -> list[str]:
    """The words of a client's greeting; raises ValueError for anything else."""
    loop = asyncio.get_running_loop()

    async def exactly(size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = await loop.sock_recv(connection, size - len(data))
            if not part:
                raise ConnectionResetError
            data += part
        return data

    if protocol.read_integer(await exactly(4)) != protocol.RPC_MAGIC:
        raise ValueError("not a client")
    size = protocol.read_integer(await exactly(4))
    if not 0 < size <= protocol.LONGEST_GREETING:
        raise ValueError("not a client")
    return (await exactly(size)).decode().split()


def _timeout(options: list[str]) -> float | None:
    for option in options:
        if option.startswith("-timeout="):
            with contextlib.suppress(ValueError):
                seconds = float(option.removeprefix("-timeout="))
                return seconds if 0 < seconds < float("inf") else None
    return None


def _keep_alive(connection: socket.socket) -> None:
    """Have the kernel notice within half a minute that the other machine is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _has_left(connection: socket.socket) -> bool:
    """Whether the other side has closed, whatever it sent before."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


async def _leaves(connection: socket.socket) -> None:
    """Return once the other side has closed. Costs nothing until then, so that measurements are left in
    peace; what the client sends is for the session and not looked at."""
    loop = asyncio.get_running_loop()
    closed = asyncio.Event()
    with select.epoll() as watch:
        watch.register(connection, select.EPOLLRDHUP)
        loop.add_reader(watch.fileno(), closed.set)
        try:
            await closed.wait()
        finally:
            loop.remove_reader(watch.fileno())
