"""An HTTP server for an accelerator, for boards without TVM: Python and NumPy are enough.

``python3 -m tvmtune_vta.server [--host ADDRESS] [--port PORT] [OPTION=VALUE ...]``, with the options of
:func:`tvmtune_vta.device.options.open_accelerator`; :mod:`tvmtune_vta.device.protocol` is the protocol.

It is written on the standard library's ``http.server`` because a web framework would be one more
package to install on boards for which there are hardly any wheels.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.remote import access
from tvmtune.remote.protocol import Address, listen
from tvmtune_vta.device import protocol
from tvmtune_vta.device.accelerator import Accelerator
from tvmtune_vta.device.deadlines import SLOW_LINE, Budget, DeadlineReader
from tvmtune_vta.device.options import open_accelerator
from tvmtune_vta.device.program_cache import ProgramCache

MAX_BODY = 1 << 27
"""Bytes."""
MAX_HELD = 2 * MAX_BODY
"""Bytes of bodies held at once, of all clients together: boards have little memory. What has not come
yet is not counted, so slow clients keep nobody out."""
CHUNK = 1 << 16
IDLE_TIMEOUT = 60.0
"""Seconds within which a connection must have sent the next request up to its body, all of it."""
BODY_TIMEOUT = 30.0
"""Seconds for a body, or for a client to take a response, beside the time of a slow line."""
SHUTDOWN_TIMEOUT = 10.0
"""Seconds that a running program has to end after a signal; an FPGA writes to memory until then."""
Response = tuple[int, bytes, dict[str, str]]
"""Status, body, headers."""
_PROGRAM = re.compile(protocol.PROGRAMS + r"([0-9a-f]{64})")
_BITSTREAM = re.compile(protocol.FPGA + r"([\w.-]+\.bit)")


class AcceleratorServer(ThreadingHTTPServer):
    """Runs clients' programs on one accelerator, one at a time. Raises :class:`TvmtuneError` if it
    cannot listen."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, where: Address, accelerator: Accelerator, secret: bytes | None = None
    ) -> None:
        super().__init__((where.host, where.port), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listen(where.host, range(where.port, where.port + 1))
        self.where = Address(where.host, self.socket.getsockname()[1])
        self.cache = ProgramCache(accelerator)
        self.accelerator_lock = threading.Lock()
        """Held while a program is loaded or runs."""
        self.memory = Budget(MAX_HELD)
        """For bodies."""
        self.token = None if secret is None else protocol.token(secret)
        """What clients must send; None if anyone may connect."""

    def get_request(self) -> Any:
        """If no connection can be accepted (too many open files), wait for others to close."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(0.5)
            raise

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log one line, unless the connection broke."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            _log(f"client {client_address[0]}: {type(error).__name__}: {error}")


class _Refused(Exception):
    """A request that is rejected before its body is read."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = f"tvmtune-vta/{protocol.VERSION}"
    timeout = IDLE_TIMEOUT
    disable_nagle_algorithm = True
    error_message_format = "%(message)s\n"
    error_content_type = "text/plain"
    server: AcceleratorServer

    def setup(self) -> None:
        super().setup()
        self._reader = DeadlineReader(self.connection, 0.0)
        self.rfile = io.BufferedReader(self._reader)

    def handle_one_request(self) -> None:
        self._reader.end = time.monotonic() + IDLE_TIMEOUT
        super().handle_one_request()

    def do_GET(self) -> None:
        self._respond(self._get)

    def do_PUT(self) -> None:
        self._respond(self._put)

    def do_POST(self) -> None:
        self._respond(self._post)

    def do_DELETE(self) -> None:
        self._respond(self._delete)

    def _respond(self, handle: Callable[[bytes], Response]) -> None:
        length = self.headers.get("Content-Length", "0")
        size = int(length) if length.isdecimal() and len(length) < 20 else -1
        try:
            if "Origin" in self.headers:
                raise _Refused(HTTPStatus.FORBIDDEN, "requests from browsers are refused")
            if not 0 <= size <= MAX_BODY or "Transfer-Encoding" in self.headers:
                text = f"a request needs a Content-Length of at most {MAX_BODY} bytes"
                raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
            if not self._has_access():
                text = "this server has a secret, and the client another one or none"
                raise _Refused(HTTPStatus.UNAUTHORIZED, text)
            with self._body(size) as body:
                status, data, headers = handle(body)
        except _Refused as refused:
            self.close_connection = True  # its body was not read
            status, data, headers = refused.status, _line(refused), {"Connection": "close"}
        except (ConnectionError, TimeoutError):
            raise
        except TvmtuneError as error:
            status, data, headers = HTTPStatus.BAD_REQUEST, _line(error), {}
        except OSError as error:
            text = f"the board cannot do that: {error.strerror or error}"
            status, data, headers = HTTPStatus.INSUFFICIENT_STORAGE, _line(text), {}
        except Exception as error:  # an uploaded program may hold anything
            text = f"{type(error).__name__}: {error}"
            _log(f"client {self.client_address[0]}: {text}")
            status, data, headers = HTTPStatus.INTERNAL_SERVER_ERROR, _line(text), {}
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", str(len(data)))
        self.connection.settimeout(BODY_TIMEOUT + len(data) / SLOW_LINE)  # for all of each write
        self.end_headers()
        self.wfile.write(data)

    def _has_access(self) -> bool:
        token = self.server.token
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        return token is None or access.matches(given.encode(), token.encode())

    @contextlib.contextmanager
    def _body(self, size: int) -> Iterator[bytes]:
        """The body of a request, of ``size`` bytes."""
        end = self._reader.end = time.monotonic() + BODY_TIMEOUT + size / SLOW_LINE
        body = bytearray()
        try:
            while len(body) < size:
                part = self.rfile.read1(min(CHUNK, size - len(body)))
                if not part:
                    raise ConnectionResetError("the client disconnected")
                self.server.memory.take(len(part), end)
                body += part
            yield bytes(body)
        finally:
            self.server.memory.give_back(len(body))

    def _get(self, _: bytes) -> Response:
        if self.path != "/":
            return _not_found(self.path)
        reply = {"protocol": protocol.VERSION, **self.server.cache.accelerator.describe()}
        return HTTPStatus.OK, json.dumps(reply).encode(), {"Content-Type": "application/json"}

    def _put(self, body: bytes) -> Response:
        if match := _PROGRAM.fullmatch(self.path):
            with self.server.accelerator_lock:
                self.server.cache.get(bytes.fromhex(match[1]), lambda: body)
            return HTTPStatus.NO_CONTENT, b"", {}
        if match := _BITSTREAM.fullmatch(self.path):
            with (
                tempfile.TemporaryDirectory(prefix="tvmtune-vta-") as folder,
                self.server.accelerator_lock,
            ):
                file = Path(folder) / match[1]
                file.write_bytes(body)
                self.server.cache.program_fpga(str(file))
            _log(f"the FPGA is loaded with {match[1]}")
            return HTTPStatus.NO_CONTENT, b"", {}
        return _not_found(self.path)

    def _post(self, body: bytes) -> Response:
        match = _PROGRAM.fullmatch(self.path)
        with self.server.accelerator_lock:
            entry = self.server.cache.get(bytes.fromhex(match[1])) if match else None
            if entry is None:
                return _not_found(self.path)
            program, loaded = entry
            inputs = program.split(body, "input")
            start = time.perf_counter()
            outputs = loaded.run(inputs)
            ms = 1e3 * (time.perf_counter() - start)
        return (
            HTTPStatus.OK,
            program.join(outputs, "output"),
            {"Server-Timing": f"run;dur={ms:.3f}"},
        )

    def _delete(self, _: bytes) -> Response:
        match = _PROGRAM.fullmatch(self.path)
        if match is None:
            return _not_found(self.path)
        with self.server.accelerator_lock:
            self.server.cache.drop(bytes.fromhex(match[1]))
        return HTTPStatus.NO_CONTENT, b"", {}

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Requests are not logged: a network makes thousands."""

    def log_error(self, format: str, *values: Any) -> None:
        """Neither are malformed requests and timeouts."""


def _not_found(path: str) -> Response:
    return HTTPStatus.NOT_FOUND, _line(f"nothing at {path[:100]}"), {}


def _line(text: object) -> bytes:
    return f"{' '.join(str(text).split())}\n".encode()


def _log(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def main(words: list[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python3 -m tvmtune_vta.server",
        description="Serve an accelerator to other machines; docs/vta.md has the protocol.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="listen on (default: %(default)s)")
    parser.add_argument("--port", type=_port, default=protocol.PORT, help="(default: %(default)s)")
    parser.add_argument(
        "--secret-file",
        type=Path,
        metavar="FILE",
        help=f"serve only clients that know the secret in FILE; also {access.SECRET}",
    )
    parser.add_argument(
        "--insecure", action="store_true", help="serve other machines without a secret"
    )
    parser.add_argument(
        "options",
        nargs="*",
        metavar="OPTION=VALUE",
        help="as --target-attr of tvmtune serve: config=pynq device=fpga memory=/dev/udmabuf0 ...",
    )
    given = parser.parse_args(words)
    try:
        pairs = [option.partition("=") for option in given.options]
        if wrong := [name for name, sign, _ in pairs if not sign]:
            raise UsageError(f"'{wrong[0]}' is not OPTION=VALUE, such as config=pynq")
        if given.secret_file is not None:
            os.environ[access.SECRET_FILE] = str(given.secret_file.absolute())
        secret, where = access.secret(), Address(given.host, given.port or 1)
        access.check_open(given.host, where.is_local, secret is not None, given.insecure, "server")
        accelerator = open_accelerator(
            {name: value for name, _, value in pairs}, check_programs=True
        )
        server = AcceleratorServer(Address(given.host, given.port), accelerator, secret)
    except TvmtuneError as error:
        _log(f"Error: {error}")
        return error.exit_code
    if not server.where.is_local:
        who = "anyone who" if secret is None else "anyone who knows the secret and"
        _log(
            f"warning: {who} can reach {server.where} can use and program the FPGA, and traffic is "
            "not encrypted. Serve on 127.0.0.1 and connect with ssh -L, or use a trusted network."
        )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    simulated = accelerator.describe()["device"] == "sim"
    _log(f"{'simulates' if simulated else 'serves'} VTA at http://{server.where}")
    server.serve_forever()
    server.server_close()
    if not server.accelerator_lock.acquire(timeout=SHUTDOWN_TIMEOUT):
        _log("a program is still running: it ends with the server")
        os._exit(0)  # its thread would keep Python from ending
    server.cache.clear()  # only now: a running program writes to its memory
    return 0


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 16:
        raise argparse.ArgumentTypeError(f"'{text}' is not a port")
    return int(text)
