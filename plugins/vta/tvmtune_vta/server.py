"""Serves an accelerator over HTTP, on boards that have no TVM: Python and NumPy are enough.

``python3 -m tvmtune_vta.server [--host ADDRESS] [--port PORT] [OPTION=VALUE ...]``, with the options of
:func:`tvmtune_vta.accelerator.choose`. The protocol, HTTP/1.1 without anything else:

``GET /``
    JSON: ``protocol`` (1), and what :meth:`tvmtune_vta.accelerator.Accelerator.describe` says.
``PUT /programs/DIGEST``
    A stream's file (:mod:`tvmtune_vta.program`), to be kept ready; DIGEST is its SHA-256 in hex.
``POST /programs/DIGEST``
    Run it. The body is its inputs one behind another, as they lie in memory; the answer's its
    outputs; the header ``Server-Timing`` tells the milliseconds of the run. 404 where it is not kept.
``DELETE /programs/DIGEST``
    Forget it.
``PUT /fpga/NAME.bit``
    Load the FPGA with this bitstream.

Failures are answered with 400 and more, and a line of text.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.farm.protocol import Address, listen
from tvmtune_vta.accelerator import Accelerator, Shelf, choose

PORT = 9191
PROTOCOL = 1
LARGE, LARGEST = 1 << 20, 1 << 27
"""Bytes of a body: from the one on only :data:`LARGE_AT_ONCE` are taken at a time, beyond the other
none."""
LARGE_AT_ONCE = 2
PATIENCE = 60.0
"""Seconds after which a connection is closed on which nothing comes."""
Answer = tuple[int, bytes, dict[str, str]]
"""Status, body, headers."""
_PROGRAM = re.compile(r"/programs/([0-9a-f]{64})")
_BITSTREAM = re.compile(r"/fpga/([\w.-]+\.bit)")


class Server(ThreadingHTTPServer):
    """Runs what clients send on one accelerator, one program at a time. Raises :class:`TvmtuneError`
    where it cannot listen."""

    daemon_threads = True

    def __init__(self, where: Address, accelerator: Accelerator) -> None:
        super().__init__((where.host, where.port), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listen(where.host, range(where.port, where.port + 1))
        self.where = Address(where.host, self.socket.getsockname()[1])
        self.shelf = Shelf(accelerator)
        self.one = threading.Lock()
        """Held while a program is prepared or runs."""
        self.large = threading.BoundedSemaphore(LARGE_AT_ONCE)
        """Held by requests with a large body: boards have little memory."""

    def get_request(self) -> Any:
        """Where no connection can be had (too many open files), those who are here may leave first."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(0.5)
            raise

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks is nothing to tell of; anything else is a line."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            _say(f"client {client_address[0]}: {type(error).__name__}: {error}")


class _Refused(Exception):
    """A request whose body is not taken."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = f"tvmtune-vta/{PROTOCOL}"
    timeout = PATIENCE
    disable_nagle_algorithm = True
    error_message_format = "%(message)s\n"
    error_content_type = "text/plain"
    server: Server

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_PUT(self) -> None:
        self._answer(self._put)

    def do_POST(self) -> None:
        self._answer(self._post)

    def do_DELETE(self) -> None:
        self._answer(self._delete)

    def _answer(self, act: Callable[[bytes], Answer]) -> None:
        told = self.headers.get("Content-Length", "0")
        size = int(told) if told.isdecimal() and len(told) < 20 else -1
        try:
            if "Origin" in self.headers:
                raise _Refused(HTTPStatus.FORBIDDEN, "browsers are not served")
            if not 0 <= size <= LARGEST or "Transfer-Encoding" in self.headers:
                text = f"a body has a Content-Length of at most {LARGEST} bytes"
                raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
            with self.server.large if size >= LARGE else contextlib.nullcontext():
                status, data, headers = act(self.rfile.read(size))
        except _Refused as refused:
            self.close_connection = True  # its body is not read
            status, data, headers = refused.status, _line(refused), {"Connection": "close"}
        except (ConnectionError, TimeoutError):
            raise
        except TvmtuneError as error:
            status, data, headers = HTTPStatus.BAD_REQUEST, _line(error), {}
        except OSError as error:
            text = f"the board cannot do that: {error.strerror or error}"
            status, data, headers = HTTPStatus.INSUFFICIENT_STORAGE, _line(text), {}
        except Exception as error:  # a stream may hold anything
            text = f"{type(error).__name__}: {error}"
            _say(f"client {self.client_address[0]}: {text}")
            status, data, headers = HTTPStatus.INTERNAL_SERVER_ERROR, _line(text), {}
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _get(self, _: bytes) -> Answer:
        if self.path != "/":
            return _nothing(self.path)
        told = {"protocol": PROTOCOL, **self.server.shelf.accelerator.describe()}
        return HTTPStatus.OK, json.dumps(told).encode(), {"Content-Type": "application/json"}

    def _put(self, body: bytes) -> Answer:
        if found := _PROGRAM.fullmatch(self.path):
            with self.server.one:
                self.server.shelf.get(bytes.fromhex(found[1]), lambda: body)
            return HTTPStatus.NO_CONTENT, b"", {}
        if found := _BITSTREAM.fullmatch(self.path):
            with tempfile.TemporaryDirectory(prefix="tvmtune-vta-") as folder, self.server.one:
                file = Path(folder) / found[1]
                file.write_bytes(body)
                self.server.shelf.program_fpga(str(file))
            _say(f"the FPGA is loaded with {found[1]}")
            return HTTPStatus.NO_CONTENT, b"", {}
        return _nothing(self.path)

    def _post(self, body: bytes) -> Answer:
        wanted = _PROGRAM.fullmatch(self.path)
        with self.server.one:
            kept = self.server.shelf.get(bytes.fromhex(wanted[1])) if wanted else None
            if kept is None:
                return _nothing(self.path)
            program, machine = kept
            memory = program.split(body, "input")
            began = time.perf_counter()
            after = machine.run(memory)
            ms = 1e3 * (time.perf_counter() - began)
        return HTTPStatus.OK, program.join(after, "output"), {"Server-Timing": f"run;dur={ms:.3f}"}

    def _delete(self, _: bytes) -> Answer:
        found = _PROGRAM.fullmatch(self.path)
        if found is None:
            return _nothing(self.path)
        with self.server.one:
            self.server.shelf.drop(bytes.fromhex(found[1]))
        return HTTPStatus.NO_CONTENT, b"", {}

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Requests are not told of: a network makes thousands."""

    def log_error(self, format: str, *values: Any) -> None:
        """Nor are clients that send nonsense, or nothing for a while."""


def _nothing(path: str) -> Answer:
    return HTTPStatus.NOT_FOUND, _line(f"there is nothing at {path[:100]}"), {}


def _line(text: object) -> bytes:
    return f"{' '.join(str(text).split())}\n".encode()


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def main(words: list[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python3 -m tvmtune_vta.server",
        description="Run VTA's streams for other machines; docs/vta.md says who asks how.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="where to listen; %(default)s")
    parser.add_argument("--port", type=_port, default=PORT, help="%(default)s")
    parser.add_argument(
        "options",
        nargs="*",
        metavar="OPTION=VALUE",
        help="config=pynq device=fpga memory=/dev/udmabuf0 ...: as --target-attr of tvmtune serve",
    )
    given = parser.parse_args(words)
    try:
        pairs = [option.partition("=") for option in given.options]
        if wrong := [name for name, sign, _ in pairs if not sign]:
            raise UsageError(f"'{wrong[0]}' is no OPTION=VALUE, as config=pynq is.")
        accelerator = choose({name: value for name, _, value in pairs}, careful=True)
        server = Server(Address(given.host, given.port), accelerator)
    except TvmtuneError as error:
        _say(f"Error: {error}")
        return error.exit_code
    if not server.where.is_local:
        _say(
            f"warning: whoever reaches {server.where} can use the accelerator and load the FPGA. Serve "
            "at 127.0.0.1 and reach it by ssh -L, or in a network that you trust."
        )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    told = accelerator.describe()
    what = "simulates VTA" if told["device"] == "sim" else "serves VTA"
    _say(f"{what} at http://{server.where}")
    server.serve_forever()
    server.server_close()
    with server.one:  # a program that runs writes to its memory
        server.shelf.clear()
    return 0


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 16:
        raise argparse.ArgumentTypeError(f"'{text}' is no port")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
