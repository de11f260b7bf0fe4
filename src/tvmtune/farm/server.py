"""A board's server: it lets clients in, one at a time, and outlives whatever they do.

Three kinds of processes. The *supervisor* (this module) holds the port and the connection to the
tracker; it imports no TVM and runs nothing of anybody's. The *nursery* (nursery.py) has imported TVM and
does nothing but fork. Each *session* is a fork of it, in a process group of its own: it may abort, hang
or leak, and is ended as a group when its client leaves, when its time is over, or with the supervisor.

The protocol is TVM's (protocol.py), so stock clients and trackers are served as well. Greetings are
answered while a session runs: a client can tell a board at work from a dead one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tvmtune.errors import TvmtuneError
from tvmtune.farm import protocol
from tvmtune.farm.nursery import Nursery, Session
from tvmtune.farm.protocol import LOCAL, SERVER_PORTS, Address

GREETING = 10.0
"""Seconds in which a client has to have said who it is."""
PING = 2.0
"""Seconds between two looks at the tracker."""
UNCLAIMED = 6.0
"""Seconds after which a board is offered anew that the tracker has given away, but nobody came to."""
RETRY = 5.0
"""Seconds between attempts to reach the tracker."""
FAREWELL = 1.0
"""Seconds that a session has to end by itself once its client has gone."""
LOOK = 0.2
"""Seconds between two looks at whether the client is still there."""


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
    """What sessions need: see :mod:`tvmtune.farm.nursery`."""


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
        self._listener = _listen(serving.host, serving.ports)
        self.port: int = self._listener.getsockname()[1]
        self._match = serving.key
        """The key that the next client has to know; with a tracker, another one each time."""
        self._clients: asyncio.Queue[_Client] = asyncio.Queue()
        self._idle = asyncio.Event()
        """Set while a client can be served."""
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop)
        async with Nursery(self.serving.nursery) as nursery:
            tasks = [
                asyncio.create_task(self._accept()),
                asyncio.create_task(self._serve(nursery)),
                asyncio.create_task(self._stopping.wait()),
            ]
            if self.serving.tracker is not None:
                tasks.append(asyncio.create_task(self._register(self.serving.tracker)))
            done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
        self._listener.close()
        for task in done:
            task.result()

    def stop(self) -> None:
        """End the session that runs, if any, and :meth:`run`."""
        self._stopping.set()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        greeting: set[asyncio.Task[None]] = set()
        while True:
            try:
                connection, address = await loop.sock_accept(self._listener)
            except OSError as error:  # too many open files, say: those who are here may leave
                self.say(f"cannot accept a connection: {error.strerror}")
                await asyncio.sleep(LOOK)
                continue
            task = asyncio.create_task(self._greet(connection, f"{address[0]}:{address[1]}"))
            greeting.add(task)
            task.add_done_callback(greeting.discard)

    async def _greet(self, connection: socket.socket, address: str) -> None:
        """Find out who that is; only one who knows the key stays connected."""
        connection.setblocking(False)
        try:
            words = await asyncio.wait_for(_read_greeting(connection), GREETING)
        except (OSError, ValueError, asyncio.TimeoutError):
            connection.close()
            return
        except asyncio.CancelledError:
            connection.close()
            raise
        if not words or words[0] != f"client:{self._match}":
            with contextlib.suppress(OSError):
                connection.send(protocol.integer(protocol.MISMATCH))
            connection.close()
            return
        if self.serving.tracker is not None:
            self._match = ""  # used up
        await self._clients.put(_Client(connection, address, _timeout(words[1:])))

    async def _serve(self, nursery: Nursery) -> None:
        while True:
            self._idle.set()
            client = await self._clients.get()
            self._idle.clear()
            with contextlib.closing(client.connection):
                if not _has_left(client.connection):
                    await self._session(nursery, client)

    async def _session(self, nursery: Nursery, client: _Client) -> None:
        loop = asyncio.get_running_loop()
        own = f"server:{self.serving.key}".encode()
        answer = protocol.integer(protocol.ACCEPTED) + protocol.integer(len(own)) + own
        try:
            _keep_alive(client.connection)
            await asyncio.wait_for(loop.sock_sendall(client.connection, answer), GREETING)
            session = await nursery.begin(client.connection)
        except (OSError, asyncio.TimeoutError):
            return
        self.say(f"serving {client.address}")
        try:
            why = await self._watch(session, client)
        finally:
            session.kill()
        if why and not _has_left(client.connection):
            await nursery.answer(client.connection, why)
        self.say(f"{client.address} is done" + (f": {why}" if why else ""))

    async def _watch(self, session: Session, client: _Client) -> str:
        """Wait for the end of a session; returns what its client has to be told, if anything."""
        loop = asyncio.get_running_loop()
        ends = None if client.timeout is None else loop.time() + client.timeout
        left: float | None = None
        while True:
            done, _ = await asyncio.wait([session.ended], timeout=LOOK)
            if done:
                return session.ended.result()
            now = loop.time()
            if ends is not None and now > ends:
                return (
                    f"RPCSessionTimeoutError: the {client.timeout:g} s of this session are over; "
                    "ask for more with session_timeout"
                )
            if left is None and _has_left(client.connection):
                left = now
            if left is not None and now > left + FAREWELL:
                return "its client left while it was at work"

    async def _register(self, tracker: Address) -> None:
        """Offer the board to the tracker whenever it is idle, for as long as this process lives."""
        complained = False
        while True:
            try:
                reader, writer = await asyncio.wait_for(
                    asyncio.open_connection(tracker.host, tracker.port), protocol.PATIENCE
                )
            except (OSError, asyncio.TimeoutError) as error:
                if not complained:
                    reason = error.strerror if isinstance(error, OSError) else "it does not answer"
                    self.say(f"no tracker at {tracker} ({reason}): trying again")
                    complained = True
                await asyncio.sleep(RETRY)
                continue
            try:
                await self._offer(_Line(reader, writer), tracker)
            except (OSError, EOFError, ValueError, asyncio.TimeoutError):
                self._match = ""
                self.say(f"the tracker at {tracker} is gone: trying again")
                complained = True
            finally:
                writer.close()
            await asyncio.sleep(RETRY / 5)

    async def _offer(self, line: _Line, tracker: Address) -> None:
        """Returns never; raises what a broken connection raises."""
        key = self.serving.key
        await line.greet()
        info = {"key": f"server:{key}", "addr": [self.serving.custom_address, self.port]}
        await line.call([protocol.UPDATE_INFO, info])
        self.say(f"registered with the tracker at {tracker} as {key}")
        self._match = ""
        taken = 0.0
        loop = asyncio.get_running_loop()
        while True:
            await self._idle.wait()
            if not self._match:
                match = protocol.match_key(key)
                offer = [protocol.PUT, key, [self.port, match], self.serving.custom_address]
                if await line.call(offer) != protocol.SUCCESS:
                    raise ValueError("the tracker refused the board")
                self._match, taken = match, 0.0
            await asyncio.sleep(PING / 10 if not self._idle.is_set() else PING)
            waiting = await line.call([protocol.PENDING])
            if self._match and self._match not in waiting:
                taken = taken or loop.time()
                if loop.time() - taken > UNCLAIMED:
                    self.say("nobody came for the board: offering it anew")
                    self._match = ""


class _Line:
    """Messages to and from the tracker, each within its deadline."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def greet(self) -> None:
        self._writer.write(protocol.integer(protocol.TRACKER_MAGIC))
        if await self._integer() != protocol.TRACKER_MAGIC:
            raise ValueError("not a tracker")

    async def call(self, message: Any) -> Any:
        import json

        self._writer.write(protocol.pack(message))
        size = await self._integer()
        if not 0 < size <= protocol.MOST:
            raise ValueError("not a tracker")
        data = await asyncio.wait_for(self._reader.readexactly(size), protocol.PATIENCE)
        return json.loads(data)

    async def _integer(self) -> int:
        data = await asyncio.wait_for(self._reader.readexactly(4), protocol.PATIENCE)
        return protocol.read_integer(data)


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
    if not 0 < size <= protocol.LONGEST_KEY:
        raise ValueError("not a client")
    return (await exactly(size)).decode().split()


def _timeout(options: list[str]) -> float | None:
    for option in options:
        if option.startswith("-timeout="):
            with contextlib.suppress(ValueError):
                return float(option.removeprefix("-timeout=")) or None
    return None


def _listen(host: str, ports: range) -> socket.socket:
    """A listening socket on the first port of ``ports`` that is free."""
    try:
        family, *_ = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise TvmtuneError(f"cannot serve at '{host}': {error.strerror or error}.") from None
    for port in ports:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(64)
        except OSError as error:
            listener.close()
            if port != ports[-1] and len(ports) > 1:
                continue
            which = f"port {port}" if len(ports) == 1 else f"the ports {ports[0]} to {ports[-1]}"
            raise TvmtuneError(
                f"cannot listen on {which} of {host}: {error.strerror}. Choose another with --port."
            ) from None
        listener.setblocking(False)
        return listener
    raise TvmtuneError("there is no port to listen on.")


def _keep_alive(connection: socket.socket) -> None:
    """Have the kernel notice within half a minute that the other machine is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)


def _has_left(connection: socket.socket) -> bool:
    """Whether the other side has closed, whatever it sent before."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


def end_group(pid: int) -> None:
    """Kill a process and all that belong to its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
