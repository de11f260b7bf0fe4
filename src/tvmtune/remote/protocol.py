"""TVM's RPC tracker protocol and the handshake with its servers, without importing TVM.

Both run over TCP; integers are 4 bytes, little-endian. With a tracker, each side sends a magic
number, then JSON messages prefixed by their length. A client greets a server with a magic number and
a key, ``client:KEY [-timeout=SECONDS]``; the server answers with a code and, if the key is right, its
own key. TVM handles everything after that. (``python/tvm/rpc/{base,tracker,server}.py`` of TVM 0.27.)

Nothing here trusts the other side: lengths are bounded, and every exchange of messages has one
deadline, however slowly its bytes arrive.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvmtune import bounded
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.remote import access

RPC_MAGIC = 0xFF271
TRACKER_MAGIC = 0x2F271
ACCEPTED = RPC_MAGIC
MISMATCH = RPC_MAGIC + 2

SUCCESS, FAIL = 0, -1
PUT, REQUEST, UPDATE_INFO, SUMMARY, PENDING = 3, 4, 5, 6, 7
"""The tracker's message codes."""

TRACKER_PORT = 9190
SERVER_PORTS = range(9090, 9190)
"""Ports that a server tries, in order."""
LOCAL = "127.0.0.1"
OURS = "tvmtune"
"""Key in a server's tracker entry that marks it as served by ``tvmtune serve``."""

DIRECT = "direct"
"""In the answers of a server that is its own tracker: it is where the client has reached it."""

DIED = "the board's process died: "
"""Prefix of the error that a client receives if its code crashed the session's process."""
RESTARTED = "the board's server had to be restarted"

MAX_MESSAGE_BYTES = 1 << 20
"""Bytes in a message; longer ones are rejected as garbage."""
LONGEST_KEY, LONGEST_GREETING = 200, 1024
"""Bytes."""
REPLY_TIMEOUT = 10.0
"""Seconds for a tracker or server to answer."""
WANTED_POLL_INTERVAL = 0.2
"""Seconds between two checks whether a board is still wanted, while waiting for one."""

_INT = struct.Struct("<i")


@dataclass(frozen=True)
class Address:
    """Host and port."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether it can be reached from this machine only."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @staticmethod
    def parse(text: str, port: int = TRACKER_PORT) -> Address:
        """``HOST``, ``HOST:PORT`` or ``[IPv6]:PORT``; raises :class:`UsageError` for anything else."""
        host, separator, number = text.rpartition(":")
        if text.endswith("]") or not separator:
            host, number = text, str(port)
        elif ":" in host and not host.startswith("["):
            host, number = text, str(port)  # a bare IPv6 address
        host = host.removeprefix("[").removesuffix("]")
        if not host or not number.isdecimal() or not 0 < int(number) < 65536:
            raise UsageError(f"'{text}' is not an address: give HOST:PORT, e.g. {LOCAL}:{port}")
        return Address(host, int(number))


def tracker_address(given: str | None = None) -> Address:
    """The tracker to use: ``given``, or TVM's environment variables ``TVM_TRACKER_HOST`` and
    ``TVM_TRACKER_PORT``, or the default."""
    if given:
        return Address.parse(given)
    host = os.environ.get("TVM_TRACKER_HOST") or LOCAL
    host = f"[{host}]" if ":" in host else host
    return Address.parse(f"{host}:{os.environ.get('TVM_TRACKER_PORT') or TRACKER_PORT}")


def split_remote(remote: str) -> tuple[str, Address]:
    """Key and tracker of ``KEY`` or ``KEY@HOST:PORT``; raises :class:`UsageError`."""
    key, _, address = remote.partition("@")
    if not address and ":" in key:
        raise UsageError(
            f"'{key[:100]}' cannot be the key of a board: give KEY, KEY@HOST:PORT (of its tracker) or "
            "ssh://[USER@]HOST"
        )
    return check_key(key), tracker_address(address or None)


def check_key(key: str) -> str:
    """``key``, if it is valid; raises :class:`UsageError`.

    The tracker uses colons as separators around a key, and the handshake uses spaces.
    """
    invalid = any(c.isspace() or c in ":@" or not c.isprintable() for c in key)
    if invalid or not 0 < len(key.encode()) <= LONGEST_KEY:
        raise UsageError(
            f"'{key[:100]}' cannot be the key of a board: choose a short one without spaces, : and @"
        )
    return key


def match_key(key: str) -> str:
    """A random key that admits one client, and whose proof the client owes if there is a secret."""
    return f"{key}:{secrets.token_hex(16)}"


def pack(message: Any) -> bytes:
    """``message`` as bytes: its length and its JSON."""
    data = json.dumps(message).encode()
    return _INT.pack(len(data)) + data


def integer(value: int) -> bytes:
    return _INT.pack(value)


def read_integer(data: bytes) -> int:
    return int(_INT.unpack(data)[0])


def tracker_at(address: Address) -> str:
    """A tracker's name in messages."""
    return f"the tracker at {address}"


def secret_needed(name: str) -> str:
    return (
        f"{name} serves only clients that know its secret: give it with --secret-file FILE or "
        f"{access.SECRET}."
    )


def other_secret(name: str) -> str:
    return f"{name} has another secret than the one given."


def no_secret_there(name: str) -> str:
    return (
        f"{name} knows no secret, or is none of tvmtune's: start it with --secret-file FILE, or use "
        f"it without --secret-file and {access.SECRET}."
    )


class Unreachable(TvmtuneError):
    """A tracker or server does not answer, or what answers is something else."""


class NotATracker(Unreachable):
    """What answers is something else."""


class Tracker:
    """A connection to a tracker. Connecting, and each call, raises :class:`Unreachable` if it fails or
    takes longer than ``patience`` seconds in all; connecting also raises :class:`UsageError` for a
    secret that cannot be read. Messages call the tracker ``name``."""

    def __init__(
        self, address: Address, patience: float = REPLY_TIMEOUT, name: str | None = None
    ) -> None:
        self.address = address
        self.patience = patience
        self.name = name or tracker_at(address)
        self._is_one = name is not None
        """Whether it is known to be a tracker, or a board that answers like one."""
        self.secret = access.secret()
        end = time.monotonic() + patience
        try:
            self._socket = connect(address, end)
        except OSError as error:
            raise Unreachable(
                f"no tracker answers at {address}: {error.strerror or error}. Start one with "
                "tvmtune tracker, or name another with --tracker HOST:PORT."
            ) from None
        try:
            if self.secret is not None:
                self._prove(access.Caller(self.secret), end)
            code = self._greet(end)
        except OSError as error:
            self.close()
            raise self._gone(error) from None
        if code == access.SECRET_NEEDED:
            self.close()
            raise Unreachable(secret_needed(self.name))
        if code != TRACKER_MAGIC:
            raise self._not_a_tracker()
        self._is_one = True

    def summary(self) -> dict[str, Any]:
        """``queue_info`` (free and pending by key) and ``server_info`` (key and address of each)."""
        answer = self._checked(self.call([SUMMARY]))
        if not (
            isinstance(answer, list)
            and len(answer) == 2
            and answer[0] == SUCCESS
            and isinstance(answer[1], dict)
            and _is_summary(answer[1])
        ):
            raise self._not_a_tracker()
        for entry in answer[1].get("server_info", ()):
            if isinstance(entry, dict) and DIRECT in entry:
                entry["addr"] = [self.address.host, self.address.port]
        return answer[1]

    def request(
        self,
        key: str,
        wait: float,
        priority: int = 1,
        wanted: Callable[[], bool] = lambda: True,
    ) -> tuple[Address, str] | None:
        """A board and the key to greet it with; None if none became free within ``wait`` seconds, or
        before ``wanted`` returned False.

        The connection is closed after a None, which cancels the request.
        """
        answer = self.call([REQUEST, key, "", priority], wait, wanted)
        if answer is None:
            self.close()
            return None
        self._checked(answer)
        if not (isinstance(answer, list) and len(answer) in (2, 3) and answer[0] == SUCCESS):
            raise self._not_a_tracker()
        try:
            host, port, match = answer[1]
            if DIRECT in answer[2:]:
                host, port = self.address.host, self.address.port
            return Address(str(host), int(port)), access.ticket(self.secret, str(match))
        except (TypeError, ValueError, OverflowError):
            raise self._not_a_tracker() from None

    def call(
        self, message: Any, wait: float | None = None, wanted: Callable[[], bool] = lambda: True
    ) -> Any:
        """Send a message and return the answer; None if it does not begin within ``wait`` seconds, or
        before ``wanted`` returns False."""
        try:
            end = time.monotonic() + self.patience
            send(self._socket, pack(message), end)
            if wait is not None:
                latest = time.monotonic() + wait
                while not self._answers(min(WANTED_POLL_INTERVAL, latest - time.monotonic())):
                    if time.monotonic() > latest or not wanted():
                        # An answer that has come meanwhile grants a board: ignored, it would idle.
                        if self._answers(0.0):
                            break
                        return None
                end = time.monotonic() + self.patience
            size = read_integer(receive(self._socket, 4, end))
            if not 0 < size <= MAX_MESSAGE_BYTES:
                raise self._not_a_tracker()
            return bounded.parse_json(receive(self._socket, size, end))
        except (OSError, ValueError) as error:
            self.close()
            raise self._gone(error) from None

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answers(self, wait: float) -> bool:
        """Whether the tracker sends something, or closes, within ``wait`` seconds."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(1e3 * max(0.0, wait)))

    def _checked(self, answer: Any) -> Any:
        """``answer``; raises :class:`Unreachable` for one that says why not."""
        if isinstance(answer, list) and len(answer) == 2 and answer[0] == FAIL:
            self.close()
            raise Unreachable(f"{self.name}: {str(answer[1])[:500]}")
        return answer

    def _prove(self, caller: access.Caller, end: float) -> None:
        """Exchange proofs of the secret; raises :class:`Unreachable` if the tracker has another, or
        none."""
        send(self._socket, caller.hello(), end)
        try:
            answer = receive(self._socket, 4, end)
        except ConnectionError:  # TVM's own tracker closes: the code means nothing to it
            answer = b""
        if not answer or read_integer(answer) != access.HELLO:
            self.close()
            raise Unreachable(no_secret_there(self.name))
        answer += receive(self._socket, access.ANSWER_BYTES - 4, end)
        with contextlib.suppress(access.WrongSecret):
            reply = caller.reply(answer)
            self._is_one = True  # it has proved it
            send(self._socket, reply, end)
            if read_integer(receive(self._socket, 4, end)) == access.HELLO:
                return
        self.close()
        raise Unreachable(other_secret(self.name))

    def _greet(self, end: float) -> int:
        """The code that the tracker answers to its protocol's."""
        send(self._socket, integer(TRACKER_MAGIC), end)
        try:
            return read_integer(receive(self._socket, 4, end))
        except ConnectionError:
            if self.secret is not None:
                raise  # it has proved to be a tracker
            raise self._not_a_tracker() from None

    def _gone(self, error: Exception) -> Unreachable:
        if isinstance(error, TimeoutError):
            waited = f"timed out after {self.patience:g} s"
            if self._is_one:
                return Unreachable(
                    f"{self.name} does not answer: {waited}. If it hangs, restart it."
                )
            return Unreachable(
                f"what answers at {self.address} is not a tracker, or hangs: {waited}. Restart it if "
                f"it is one. A tracker listens on port {TRACKER_PORT} by default."
            )
        return Unreachable(f"{self.name} is gone: {error}.")

    def _not_a_tracker(self) -> NotATracker:
        self.close()
        return NotATracker(
            f"what answers at {self.address} is not a tracker. A tracker listens on port "
            f"{TRACKER_PORT} by default."
        )


def _is_summary(answer: dict[str, Any]) -> bool:
    """Whether keys have numbers of boards and requests; entries of servers may be anything."""
    queues = answer.get("queue_info", {})
    return (
        isinstance(answer.get("server_info", []), list)
        and isinstance(queues, dict)
        and all(
            isinstance(queue, dict)
            and all(type(queue.get(name, 0)) is int for name in ("free", "pending"))
            for queue in queues.values()
        )
    )


def connect(address: Address, end: float) -> socket.socket:
    """A connection to ``address``, open before ``end`` on the monotonic clock; raises OSError.

    ``socket.create_connection`` would wait anew for each address that a name stands for.
    """
    error = OSError(f"{address.host} has no address")
    for family, kind, protocol, _, where in socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM
    ):
        connection = None
        try:
            connection = socket.socket(family, kind, protocol)  # fails without IPv6, for example
            connection.settimeout(_left(end))
            connection.connect(where)
        except OSError as failure:
            if connection is not None:
                connection.close()
            error = failure
        else:
            return connection
    raise error


def send(connection: socket.socket, data: bytes, end: float) -> None:
    """Send all of ``data`` before ``end`` on the monotonic clock; raises OSError."""
    connection.settimeout(_left(end))
    connection.sendall(data)  # its timeout is for all of the data


def receive(connection: socket.socket, size: int, end: float) -> bytes:
    """Exactly ``size`` bytes, all of them before ``end`` on the monotonic clock.

    Raises OSError if they come later, or if the other side closes before.
    """
    parts = []
    while size:
        connection.settimeout(_left(end))  # the timeout of a socket starts anew with each byte
        part = connection.recv(min(size, 1 << 16))
        if not part:
            raise ConnectionResetError("the connection was closed")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _left(end: float) -> float:
    """Seconds until ``end``; raises TimeoutError if there are none."""
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def listen(host: str, ports: range) -> socket.socket:
    """A non-blocking socket that listens on the first free port of ``ports``; raises
    :class:`TvmtuneError` if there is none."""
    try:
        family, *_ = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise TvmtuneError(f"cannot listen at '{host}': {error.strerror or error}") from None
    for port in ports:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(64)
        except OSError as error:
            listener.close()
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise TvmtuneError(
                    f"cannot listen at {host}: {error.strerror}. --host has to be an address of this "
                    "machine"
                ) from None
            if port != ports[-1]:
                continue
            which = f"port {port}" if len(ports) == 1 else f"the ports {ports[0]} to {ports[-1]}"
            raise TvmtuneError(
                f"cannot listen on {which} of {host}: {error.strerror}. Choose another with --port."
            ) from None
        listener.setblocking(False)
        return listener
    raise TvmtuneError("there is no port to listen on")


def is_alive(server: Address, patience: float = 3.0) -> bool:
    """Whether a server answers a greeting; the greeting has a wrong key, so no session begins.

    A board that is frozen, off or out of reach does not answer. A busy one does if ``tvmtune serve``
    serves it; TVM's own server answers only once its session has ended.
    """
    greeting = b"client:tvmtune-is-anyone-there"
    end = time.monotonic() + patience
    try:
        with connect(server, end) as connection:
            send(connection, integer(RPC_MAGIC) + integer(len(greeting)) + greeting, end)
            return read_integer(receive(connection, 4, end)) in (MISMATCH, ACCEPTED)
    except OSError:
        return False
