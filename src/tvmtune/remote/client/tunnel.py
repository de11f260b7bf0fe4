"""``ssh://[USER@]HOST[:PORT][/SERVER-PORT]``: a board behind SSH, without a tracker.

``ssh`` itself makes the tunnel, with the user's own configuration, keys and known hosts, so this needs
no package and asks for no password. ``python -m tvmtune.remote.client.tunnel PARENT COMMAND ...``
becomes that command once it is sure to end together with its parent, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from tvmtune.errors import UsageError
from tvmtune.remote.client import boards
from tvmtune.remote.protocol import (
    LOCAL,
    SERVER_PORTS,
    Address,
    NotATracker,
    Tracker,
    Unreachable,
    check_key,
    listen,
)

SCHEME = "ssh://"
SSH = "TVMTUNE_SSH"
"""Environment variable: the command to use instead of ``ssh``, with its options."""
START_TIMEOUT = 40.0
"""Seconds for ``ssh`` to connect and authenticate; it gives up a little earlier by itself."""
OPEN = "tvmtune-tunnel-is-open"
"""What ``ssh`` prints then."""
OPTIONS = (
    *("-N", "-T", "-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes"),
    *("-o", "ConnectTimeout=30", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3"),
    *("-o", "ControlMaster=no", "-o", "ControlPath=none"),
    *("-o", "PermitLocalCommand=yes", "-o", f"LocalCommand=echo {OPEN}"),
)
"""No terminal, no questions; no connection that outlives this one; and word once ``ssh`` itself
listens: whatever else listens on the port could have taken it meanwhile."""
POLL_INTERVAL = 0.5
"""Seconds between two checks that ``ssh`` still runs."""
PORTS = range(20000, 32000)
"""Of this machine, below those that the system gives to clients."""
_REFUSED = "open failed: "
"""In what ``ssh`` says if it cannot reach the server on the board."""
STOP_TIMEOUT = 5.0
"""Seconds for ``ssh`` to end."""


@dataclass(frozen=True)
class Target:
    """A server on the loopback of a machine that SSH reaches."""

    host: str
    user: str = ""
    ssh_port: int | None = None
    port: int = SERVER_PORTS[0]

    @staticmethod
    def parse(url: str) -> Target:
        """Raises :class:`UsageError` for anything but ssh://[USER@]HOST[:PORT][/SERVER-PORT]."""
        wrong = UsageError(
            f"'{url[:100]}' is not {SCHEME}[USER@]HOST[:PORT], where PORT is that of SSH; if tvmtune "
            f"serve listens on another port than {SERVER_PORTS[0]}, append it: {SCHEME}HOST/9091"
        )
        try:
            parts = urlsplit(url)
            ssh_port = parts.port
        except ValueError:
            raise wrong from None
        host, user, port = _host(parts.netloc), parts.username or "", parts.path.strip("/")
        odd = any(c.isspace() or not c.isprintable() for c in url)
        if odd or parts.password or parts.query or parts.fragment or not host:
            raise wrong
        if host.startswith("-") or user.startswith("-"):  # they would be options of ssh
            raise wrong
        if port and not (port.isdecimal() and 0 < int(port) < 1 << 16):
            raise wrong
        return Target(host, user, ssh_port, int(port) if port else SERVER_PORTS[0])

    def command(self, local_port: int) -> list[str]:
        words = shlex.split(os.environ.get(SSH) or "ssh")
        words += [*OPTIONS, "-L", f"{LOCAL}:{local_port}:{LOCAL}:{self.port}"]
        return [*words, *self.login]

    @property
    def login(self) -> list[str]:
        """The words of ``ssh`` that say where to connect."""
        port = ["-p", str(self.ssh_port)] if self.ssh_port else []
        return [*port, "--", f"{self.user}@{self.host}" if self.user else self.host]


@contextlib.contextmanager
def opened(remote: str) -> Iterator[str]:
    """``remote`` as ``KEY@HOST:PORT``: itself or, for an ssh:// one, the board at this end of a tunnel,
    which is open for the duration of the context.

    On Linux, ``ssh`` also ends if this process is killed. Raises :class:`UsageError` for an invalid
    address, :class:`Unreachable` if there is no tunnel, or no server behind it.
    """
    if not remote.startswith(SCHEME):
        yield remote
        return
    target = Target.parse(remote)
    with tempfile.TemporaryFile() as said, _running(target, said) as local:
        try:
            with Tracker(local, name=f"the board at {remote}") as connection:
                keys = [*boards.servers(connection.summary())] or [""]
        except Unreachable as error:
            refusal = _last_line(said, _REFUSED)  # ssh accepts, then asks the board, then closes
            if not refusal and not isinstance(error, NotATracker):
                raise
            why = refusal or "what answers there is something else"
            raise Unreachable(
                f"behind {remote} there is no tvmtune serve on port {target.port}: {why.rstrip('.')}. "
                "On the board, run tvmtune serve --key KEY."
            ) from None
        yield f"{check_key(keys[0])}@{local}"


@contextlib.contextmanager
def _running(target: Target, said: object) -> Iterator[Address]:
    local = Address(LOCAL, _free_port())
    words = [sys.executable, "-m", __name__, str(os.getpid()), *target.command(local.port)]
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=said,  # type: ignore[call-overload]
        start_new_session=True,  # Ctrl-C is for this process, which still needs the board
    )
    try:
        _wait(process, target, said)
        yield local
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _wait(process: subprocess.Popen[bytes], target: Target, said: object) -> None:
    """Wait until ``ssh`` is authenticated and listens."""
    assert process.stdout is not None
    output = process.stdout.fileno()
    poll = select.poll()
    poll.register(output, select.POLLIN)
    end = time.monotonic() + START_TIMEOUT
    heard = b""
    while OPEN.encode() not in heard:
        ready = poll.poll(1e3 * POLL_INTERVAL)
        part = os.read(output, 1 << 10) if ready else b""
        heard += part
        if not part and (ready or process.poll() is not None):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT)  # it has closed its output a little earlier
            why = _last_line(said) or f"ssh ended with exit code {process.returncode}"
            raise Unreachable(
                f"no SSH connection to {target.host}: {why.rstrip('.')}. Try: ssh -o BatchMode=yes "
                f"{' '.join(target.login)} true"
            )
        if time.monotonic() > end:
            raise Unreachable(f"no SSH connection to {target.host} within {START_TIMEOUT:.0f} s.")


def _last_line(said: object, holding: str = "") -> str:
    """The last line of ``ssh`` that holds this."""
    said.seek(0)  # type: ignore[attr-defined]
    lines = said.read().decode(errors="replace").split("\n")  # type: ignore[attr-defined]
    found = (line.strip() for line in reversed(lines) if line.strip() and holding in line)
    return next(found, "")[:300]


def _host(netloc: str) -> str:
    """The host as it is written; ``urlsplit`` lowercases it, but ``ssh`` looks it up in its
    configuration with its case."""
    where = netloc.rpartition("@")[2]
    if not where.startswith("["):
        return where.partition(":")[0]
    host, _, rest = where[1:].partition("]")
    return host if not rest or rest.startswith(":") else ""


def _free_port() -> int:
    """A port that nobody listens on; ``ssh`` ends if somebody takes it first."""
    first = random.randrange(PORTS.start, PORTS.stop - 100)
    with contextlib.closing(listen(LOCAL, range(first, first + 100))) as listener:
        return int(listener.getsockname()[1])


def main(parent: int, command: list[str]) -> None:
    from tvmtune.remote.server.forkserver_process import die_with

    die_with(parent)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
