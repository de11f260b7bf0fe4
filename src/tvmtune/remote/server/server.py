"""A board's server: admits one client at a time, and survives whatever clients do.

There are three kinds of processes. The *supervisor* (this module) holds the port and the connection
to the tracker; it neither imports TVM nor runs client code. The *forkserver* (forkserver_process.py)
has imported TVM and only forks. Each *session* is a fork of it in its own process group: it may
abort, hang or leak, and the group is killed when the client leaves, when its time is over, or with
the supervisor.

The protocol is TVM's (protocol.py), so TVM's own clients and trackers work, too. Why not TVM's own
``rpc_server``: a candidate that crashes takes the board down with it (test_board_pool.py), one that
never returns keeps it forever, and while a session runs it answers nobody, so a busy board looks like
a dead one.
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
from tvmtune.machine import scratch
from tvmtune.remote import access, protocol
from tvmtune.remote.protocol import LOCAL, SERVER_PORTS, Address
from tvmtune.remote.server.own_tracker import OwnTracker, exactly
from tvmtune.remote.server.registration import Registration
from tvmtune.remote.server.session_forkserver import ForkedSession, SessionForkserver
from tvmtune.remote.termination import CLEANUP_CANCEL_INTERVAL, end

PREFIX = "tvmtune-board-"
"""Of the names of servers' folders."""
HANDSHAKE_TIMEOUT = 10.0
"""Seconds within which a client must send its greeting."""
MAX_HANDSHAKES = 128
"""Connections that may be greeting at once; if there are more, the oldest is closed."""
CLIENT_EXIT_TIMEOUT = 1.0
"""Seconds for a session to end by itself once its client has left."""
RETRY_INTERVAL = 5.0
"""Seconds between attempts at operations that should not fail."""


@dataclass
class ServerConfig:
    """The settings of a server."""

    key: str
    host: str = LOCAL
    ports: range = SERVER_PORTS
    tracker: Address | None = None
    custom_address: str | None = None
    """Host that clients should connect to, if the tracker sees another one."""
    secret: bytes | None = None
    """Serve only clients that know it (:mod:`tvmtune.remote.access`)."""
    session_options: dict[str, Any] = field(default_factory=dict)
    """Options of :func:`tvmtune.remote.server.session.prepare`."""


@dataclass
class _Client:
    connection: socket.socket
    address: str
    timeout: float | None


class BoardServer:
    """Serves until :meth:`stop`; ``report`` receives one line per event.

    Raises :class:`TvmtuneError` if no port is free or TVM cannot be imported.
    """

    def __init__(self, config: ServerConfig, report: Callable[[str], None]) -> None:
        self.config = config
        self.report = report
        self._listener = protocol.listen(config.host, config.ports)
        self.port: int = self._listener.getsockname()[1]

    async def run(self) -> None:
        """Run until :meth:`stop`, SIGINT, SIGTERM or SIGHUP."""
        self._stopping = asyncio.Event()
        self._clients: asyncio.Queue[_Client] = asyncio.Queue()
        self._registration: Registration | None = None
        if self.config.tracker is not None:
            self._registration = Registration(
                self.config.tracker,
                self.config.key,
                (self.config.custom_address, self.port),
                self.report,
                self.config.secret,
            )
        refusal = ""
        if self.config.tracker is not None:
            refusal = (
                f"the board '{self.config.key}' is registered with the tracker at "
                f"{self.config.tracker}: ask that one for it."
            )
        self._own_tracker = OwnTracker(self.config.key, self.config.secret, refusal, _leaves)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.stop)
        with contextlib.closing(self._listener), scratch.folder(PREFIX) as folder:
            work = asyncio.create_task(
                self._work(self.config.session_options | {"folder": str(folder)})
            )
            stop = asyncio.create_task(self._stopping.wait())
            await asyncio.wait([work, stop], return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            await end([work], CLEANUP_CANCEL_INTERVAL)
            with contextlib.suppress(asyncio.CancelledError):
                await work

    def stop(self) -> None:
        """End :meth:`run`, and the current session if there is one."""
        self._stopping.set()

    async def _work(self, options: dict[str, Any]) -> None:
        async with SessionForkserver(options) as forkserver:
            where = Address(self.config.host, self.port)
            self.report(
                f"serving '{self.config.key}' at {where}, TVM {forkserver.versions['apache-tvm']}"
            )
            tasks = [
                asyncio.create_task(self._accept()),
                asyncio.create_task(self._serve(forkserver)),
            ]
            if self._registration is not None:
                tasks.append(asyncio.create_task(self._registration.run()))
            try:
                await asyncio.gather(*tasks)
            finally:
                self._own_tracker.close()
                await end(tasks)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        greeting: dict[asyncio.Task[None], None] = {}  # an ordered set
        try:
            while True:
                try:
                    connection, address = await loop.sock_accept(self._listener)
                except OSError as error:  # e.g. too many open files: some clients may leave
                    self.report(f"cannot accept a connection: {error.strerror}")
                    await asyncio.sleep(RETRY_INTERVAL)
                    continue
                if len(greeting) >= MAX_HANDSHAKES:
                    oldest = next(iter(greeting))
                    del greeting[oldest]
                    oldest.cancel()
                task = asyncio.create_task(self._greet(connection, str(Address(*address[:2]))))
                greeting[task] = None
                task.add_done_callback(lambda done: greeting.pop(done, None))
                await asyncio.sleep(0)  # many new connections must not starve the others
        finally:
            for task in list(greeting):
                task.cancel()

    async def _greet(self, connection: socket.socket, address: str) -> None:
        """Read a client's greeting; close the connection unless it has the key."""
        connection.setblocking(False)
        admitted = False
        try:
            first, words = await asyncio.wait_for(_read_greeting(connection), HANDSHAKE_TIMEOUT)
            if words is None:
                admitted = True
                self._own_tracker.talk(connection, first)
            elif self._admit(words[0] if words else ""):
                admitted = True
                await self._clients.put(_Client(connection, address, _timeout(words[1:])))
            else:
                connection.send(protocol.integer(protocol.MISMATCH))
        except (OSError, ValueError, asyncio.TimeoutError):
            pass  # it left, or is not a TVM client
        finally:
            if not admitted:
                connection.close()

    def _admit(self, who: str) -> bool:
        if self._registration is not None:
            return self._registration.claim(who.removeprefix("client:"))
        if self.config.secret is None and who == f"client:{self.config.key}":
            return True
        return self._own_tracker.claim(who.removeprefix("client:"))

    async def _serve(self, forkserver: SessionForkserver) -> None:
        while True:
            await self._prepare(forkserver)
            if self._clients.empty():
                (self._registration or self._own_tracker).offer()
            client = await self._clients.get()
            self._own_tracker.take()
            with contextlib.closing(client.connection):
                if not _has_left(client.connection):
                    await self._session(forkserver, client)

    async def _prepare(self, forkserver: SessionForkserver) -> None:
        """Start the forkserver before the board is offered."""
        while True:
            try:
                await forkserver.ensure_running()
            except (TvmtuneError, OSError) as error:
                self.report(f"{error} Trying again in {RETRY_INTERVAL:.0f} s")
                await asyncio.sleep(RETRY_INTERVAL)
            else:
                return

    async def _session(self, forkserver: SessionForkserver, client: _Client) -> None:
        loop = asyncio.get_running_loop()
        own = f"server:{self.config.key}".encode()
        answer = protocol.integer(protocol.ACCEPTED) + protocol.integer(len(own)) + own
        try:
            _keep_alive(client.connection)
            await asyncio.wait_for(loop.sock_sendall(client.connection, answer), HANDSHAKE_TIMEOUT)
            client.connection.setblocking(True)  # TVM expects that; the session shares this flag
        except (OSError, asyncio.TimeoutError):
            return
        try:
            session = await forkserver.begin(client.connection)
        except (OSError, TvmtuneError, asyncio.TimeoutError) as error:
            reason = f"the board cannot start a session: {str(error) or 'it took too long'}"
            self.report(f"client {client.address}: {reason}")
            await forkserver.answer(client.connection, reason)
            return
        self.report(f"client {client.address}")
        try:
            reason = await self._watch(session, client)
        finally:
            session.kill()
        if reason and not _has_left(client.connection):
            await forkserver.answer(client.connection, reason)
        self.report(f"client {client.address} finished" + (f": {reason}" if reason else ""))

    async def _watch(self, session: ForkedSession, client: _Client) -> str:
        """Wait for the end of a session; returns the error to send to its client, or ""."""
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
                await asyncio.wait([session.ended], timeout=CLIENT_EXIT_TIMEOUT)
        finally:
            left.cancel()
        if session.ended.done():
            return session.ended.result()
        return "its client left during a call"


async def _read_greeting(connection: socket.socket) -> tuple[bytes, list[str] | None]:
    """The first four bytes of a client, and the words of its greeting, or None if it takes this server
    for a tracker; raises ValueError if it is no client."""
    first = await exactly(connection, 4)
    code = protocol.read_integer(first)
    if code in (protocol.TRACKER_MAGIC, access.HELLO):
        return first, None
    if code != protocol.RPC_MAGIC:
        raise ValueError("not a client")
    size = protocol.read_integer(await exactly(connection, 4))
    if not 0 < size <= protocol.LONGEST_GREETING:
        raise ValueError("not a client")
    return first, (await exactly(connection, size)).decode().split()


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
    """Whether the other side has closed, even with unread data before that."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


async def _leaves(connection: socket.socket) -> None:
    """Return once the other side has closed. Until then it takes no CPU time, so measurements are not
    disturbed. It does not read: what the client sends is for the session."""
    loop = asyncio.get_running_loop()
    closed = asyncio.Event()
    with select.epoll() as watch:
        watch.register(connection, select.EPOLLRDHUP)
        loop.add_reader(watch.fileno(), closed.set)
        try:
            await closed.wait()
        finally:
            loop.remove_reader(watch.fileno())
