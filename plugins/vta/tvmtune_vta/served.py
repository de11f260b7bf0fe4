"""An accelerator of another machine, over the protocol of :mod:`tvmtune_vta.server`."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tvmtune.errors import TvmtuneError
from tvmtune.farm.protocol import Address
from tvmtune_vta import accelerator, server
from tvmtune_vta.accelerator import Memory
from tvmtune_vta.config import Config
from tvmtune_vta.program import Program

PATIENCE = 10.0
"""Seconds for the other side to be there, and to say what it is."""
WORK = 600.0
"""Seconds for an answer: a board's processor may need minutes to look through a large program."""


class Served:
    """The accelerator at ``address``, HOST or HOST:PORT; with ``config``, it has to be that one.

    Raises :class:`UsageError` for what is no address, :class:`TvmtuneError` where nobody answers there
    or where the configuration is another one.
    """

    def __init__(self, address: str, config: Config | None = None) -> None:
        self.where = Address.parse(address.rstrip("/"), server.PORT)
        self._line: http.client.HTTPConnection | None = None
        self._lock = threading.Lock()
        told = self.describe().get("config")
        found = None if told is None else Config.parse(told, f"the server at {self.where}")
        if found is not None and config is not None and (keys := found.differences(config)):
            raise TvmtuneError(
                f"the server at {self.where} has {found.bitstream}, not {config.bitstream}: "
                f"{', '.join(keys)} differ."
            )
        self.config = config if found is None else found

    def machine(self, program: Program) -> _Machine:
        return _Machine(self, program)

    def describe(self) -> dict[str, Any]:
        status, data = self.ask("GET", "/")
        try:
            told: dict[str, Any] = json.loads(data)
            if status == http.client.OK and told["protocol"] == server.PROTOCOL:
                return told
        except (ValueError, TypeError, LookupError):
            pass
        raise TvmtuneError(
            f"what answers at {self.where} is no server of VTA's, or one of another version: there, "
            "run python3 -m tvmtune_vta.server."
        )

    def program_fpga(self, path: str) -> None:
        self.demand("PUT", f"/fpga/{quote(Path(path).name)}", Path(path).read_bytes())

    def demand(self, method: str, path: str, body: bytes = b"") -> bytes:
        """:meth:`ask`, where only success will do; raises :class:`TvmtuneError` with what was said."""
        return self.accept(*self.ask(method, path, body))

    def accept(self, status: int, data: bytes) -> bytes:
        """The body of an answer; raises :class:`TvmtuneError` if it is one of failure."""
        if status >= http.client.BAD_REQUEST:
            text = data.decode(errors="replace").strip() or http.client.responses.get(status, "")
            raise TvmtuneError(f"the server at {self.where}: {text}")
        return data

    def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Status and body of an answer; raises :class:`TvmtuneError` where there is none. Every request
        may be made twice, and is, where the line was closed meanwhile."""
        with self._lock:
            kept = self._line is not None
            try:
                return self._exchange(method, path, body)
            except (http.client.HTTPException, OSError) as error:
                self._close()
                if kept and not isinstance(error, TimeoutError):
                    try:
                        return self._exchange(method, path, body)
                    except (http.client.HTTPException, OSError) as again:
                        self._close()
                        error = again
                why = str(error) or type(error).__name__
                raise TvmtuneError(
                    f"no server of VTA's answers at {self.where}: {why}. There, run python3 -m "
                    "tvmtune_vta.server."
                ) from None

    def _exchange(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        if self._line is None:
            self._line = http.client.HTTPConnection(
                self.where.host, self.where.port, timeout=PATIENCE
            )
        if self._line.sock is None:  # also where the other side closed behind its answer
            self._line.connect()
        assert self._line.sock is not None
        self._line.sock.settimeout(WORK if method in ("PUT", "POST") else PATIENCE)
        self._line.request(method, path, body)
        answer = self._line.getresponse()
        return answer.status, answer.read()

    def _close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None


class _Machine:
    """A program that the other side keeps."""

    def __init__(self, served: Served, program: Program) -> None:
        self._served, self._program = served, program
        self._data = program.to_bytes()
        self._path = f"/programs/{accelerator.digest(self._data).hex()}"
        self._put()

    def run(self, memory: Memory) -> Memory:
        program, served = self._program, self._served
        body = program.join(memory, "input")
        status, data = served.ask("POST", self._path, body)
        if status == http.client.NOT_FOUND:  # it was started again, or needed the room
            self._put()
            status, data = served.ask("POST", self._path, body)
        return program.split(served.accept(status, data), "output")

    def close(self) -> None:
        with contextlib.suppress(TvmtuneError):  # it forgets by itself
            self._served.ask("DELETE", self._path)

    def _put(self) -> None:
        self._served.demand("PUT", self._path, self._data)
