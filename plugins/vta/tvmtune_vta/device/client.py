"""A client of :mod:`tvmtune_vta.device.server`: an accelerator on another machine."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tvmtune.errors import TvmtuneError
from tvmtune.remote import access
from tvmtune.remote.protocol import Address
from tvmtune_vta.device import protocol
from tvmtune_vta.device.accelerator import Tensors
from tvmtune_vta.device.deadlines import SLOW_LINE, deadline
from tvmtune_vta.hardware.config import Config
from tvmtune_vta.hardware.program import Program, digest

CONNECT_TIMEOUT = 10.0
"""Seconds to connect, and for the whole answer to a request without work."""
WORK_TIMEOUT = 600.0
"""Seconds to load or run a program: a board's CPU may need minutes to check a large one."""
_START = "Run python3 -m tvmtune_vta.server there."


class RemoteAccelerator:
    """The accelerator at ``address``, HOST or HOST:PORT.

    Raises :class:`UsageError` for an invalid address, :class:`TvmtuneError` if no server answers, or
    if its configuration differs from ``config``.
    """

    def __init__(self, address: str, config: Config | None = None) -> None:
        self.address = Address.parse(address.rstrip("/"), protocol.PORT)
        self._connection: http.client.HTTPConnection | None = None
        self._lock = threading.Lock()
        secret = access.secret()
        self._token = None if secret is None else protocol.token(secret)
        keys = self.describe().get("config")
        served = None if keys is None else Config.parse(keys, f"the server at {self.address}")
        if served is not None and config is not None and (keys := served.differences(config)):
            raise TvmtuneError(
                f"the server at {self.address} has {served.bitstream}, not {config.bitstream}: "
                f"{', '.join(keys)} differ"
            )
        self.config = config if served is None else served

    def load(self, program: Program) -> _RemoteProgram:
        return _RemoteProgram(self, program)

    def describe(self) -> dict[str, Any]:
        status, data = self.request("GET", "/")
        if status == http.client.UNAUTHORIZED:
            raise TvmtuneError(
                f"the VTA server at {self.address} has {'a' if self._token is None else 'another'} "
                f"secret: give its own with --secret-file FILE or {access.SECRET}"
            )
        try:
            reply: dict[str, Any] = json.loads(data)
            if status == http.client.OK and reply["protocol"] == protocol.VERSION:
                return reply
        except (ValueError, TypeError, LookupError):
            pass
        raise TvmtuneError(
            f"the server at {self.address} is not a VTA server, or runs another version. {_START}"
        )

    def program_fpga(self, path: str) -> None:
        target = protocol.FPGA + quote(Path(path).name)
        self.checked_request("PUT", target, Path(path).read_bytes())

    def checked_request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The body of a successful response; raises :class:`TvmtuneError` with the server's message
        otherwise."""
        return self.check(*self.request(method, path, body))

    def check(self, status: int, data: bytes) -> bytes:
        """The body of a response; raises :class:`TvmtuneError` if its status is an error."""
        if status >= http.client.BAD_REQUEST:
            text = data.decode(errors="replace").strip() or http.client.responses.get(status, "")
            raise TvmtuneError(f"the server at {self.address}: {text}")
        return data

    def request(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Status and body of the response; raises :class:`TvmtuneError` if there is none.

        Requests are idempotent, so one that fails on a kept-alive connection is sent once more.
        """
        with self._lock:
            kept_alive = self._connection is not None
            try:
                return self._exchange(method, path, body)
            except (http.client.HTTPException, OSError) as error:
                self._disconnect()
                if kept_alive and not isinstance(error, TimeoutError):
                    try:
                        return self._exchange(method, path, body)
                    except (http.client.HTTPException, OSError) as again:
                        self._disconnect()
                        error = again
                why = str(error) or type(error).__name__
                raise TvmtuneError(
                    f"no VTA server answers at {self.address}: {why}. {_START}"
                ) from None

    def _exchange(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(
                self.address.host, self.address.port, timeout=CONNECT_TIMEOUT
            )
        if self._connection.sock is None:  # also after a response that closed the connection
            self._connection.connect()
        assert self._connection.sock is not None
        limit = CONNECT_TIMEOUT
        if method in ("PUT", "POST"):
            limit = WORK_TIMEOUT + len(body) / SLOW_LINE
        self._connection.sock.settimeout(limit)
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        with deadline(self._connection.sock, limit):
            self._connection.request(method, path, body, headers)
            response = self._connection.getresponse()
            return response.status, response.read()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _RemoteProgram:
    """A program that the server has loaded."""

    def __init__(self, server: RemoteAccelerator, program: Program) -> None:
        self._server, self._program = server, program
        self._data = program.to_bytes()
        self._path = protocol.PROGRAMS + digest(self._data).hex()
        self._upload()

    def run(self, memory: Tensors) -> Tensors:
        program, server = self._program, self._server
        body = program.join(memory, "input")
        status, data = server.request("POST", self._path, body)
        if status == http.client.NOT_FOUND:  # the server restarted, or evicted it
            self._upload()
            status, data = server.request("POST", self._path, body)
        return program.split(server.check(status, data), "output")

    def close(self) -> None:
        with contextlib.suppress(TvmtuneError):  # the server evicts it eventually
            self._server.request("DELETE", self._path)

    def _upload(self) -> None:
        self._server.checked_request("PUT", self._path, self._data)
