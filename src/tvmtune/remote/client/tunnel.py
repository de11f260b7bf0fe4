"""``ssh://[USER@]HOST[:PORT][/SERVER-PORT]``: a board behind SSH, without a tracker.

``ssh`` itself makes the tunnel, with the user's own configuration, keys and known hosts, so this needs
no package and asks for no password. ``python -m tvmtune.remote.client.tunnel PARENT COMMAND ...``
becomes that command once it is sure to end together with its parent, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import random
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
    Tracker,
    Unreachable,
    check_key,
    connect,
    listen,
)

SCHEME = "ssh://"
SSH = "TVMTUNE_SSH"
"""Environment variable: the command to use instead of ``ssh``, with its options."""
START_TIMEOUT = 40.0
"""Seconds for ``ssh`` to connect and authenticate; it gives up a little earlier by itself."""
OPTIONS = (
    *("-N", "-T", "-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes"),
    *("-o", "ConnectTimeout=30", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3"),
    *("-o", "ControlMaster=no", "-o", "ControlPath=none"),
)
"""No terminal, no questions; and no connection that outlives this one."""
POLL_INTERVAL = 0.1
PORTS = range(20000, 32000)
"""Of this machine, below those that the system gives to clients."""
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
            f"serve listens on another port than {SERVER_PORTS[0]}, append it: {SCHEME}HOST/9091."
        )
        try:
            parts = urlsplit(url)
            ssh_port = parts.port
        except ValueError:
            raise wrong from None
        host, user, port = parts.hostname or "", parts.username or "", parts.path.strip("/")
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
        words += ["-p", str(self.ssh_port)] if self.ssh_port else []
        return [*words, "--", f"{self.user}@{self.host}" if self.user else self.host]


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
            with Tracker(local) as connection:
                keys = [*boards.servers(connection.summary())] or [""]
        except Unreachable as error:
            why = _last_line(said) or str(error)
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
        stdout=subprocess.DEVNULL,
        stderr=said,  # type: ignore[call-overload]
        start_new_session=True,  # Ctrl-C is for this process, which still needs the board
    )
    try:
        _wait(process, local, target, said)
        yield local
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], local: Address, target: Target, said: object) -> None:
    """Wait until the tunnel is open: ``ssh`` listens once it is authenticated."""
    end = time.monotonic() + START_TIMEOUT
    while True:
        if process.poll() is not None:
            why = _last_line(said) or f"ssh ended with exit code {process.returncode}"
            raise Unreachable(
                f"no SSH connection to {target.host}: {why.rstrip('.')}. Try: ssh -o BatchMode=yes "
                f"{target.host} true"
            )
        with contextlib.suppress(OSError):
            connect(local, time.monotonic() + 1.0).close()
            return
        if time.monotonic() > end:
            raise Unreachable(f"no SSH connection to {target.host} within {START_TIMEOUT:.0f} s.")
        time.sleep(POLL_INTERVAL)


def _last_line(said: object) -> str:
    """What ``ssh`` has said last."""
    said.seek(0)  # type: ignore[attr-defined]
    lines = said.read().decode(errors="replace").split("\n")  # type: ignore[attr-defined]
    return next((line.strip() for line in reversed(lines) if line.strip()), "")[:300]


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
