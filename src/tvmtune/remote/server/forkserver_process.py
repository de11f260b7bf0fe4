"""The forkserver process of a board: imports TVM once, and forks a session for each client.

It runs as ``python -m tvmtune.remote.server.forkserver_process FD OPTIONS`` and takes orders over a
Unix socket, one JSON line each, together with the client's connection: ``serve`` forks a session for
it, ``answer`` a process that sends the client an error in place of its result, ``ping`` is answered.
It reports which sessions began and ended. It is single-threaded, runs no client code and waits for no
client, so it should neither die nor hang; if it does, the supervisor (session_forkserver.py) starts
another.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from tvmtune import block_torch_import
from tvmtune.errors import TvmtuneError

_PR_SET_PDEATHSIG = 1
_LINE = 1 << 16
_ERROR_SEND_TIMEOUT = 5
"""Seconds for a client to receive its error."""


def main(descriptor: int, options: dict[str, Any]) -> None:
    """The forkserver's main loop. ``options``: ``folder``, where each session gets a folder;
    ``parent``, the supervisor's process id; and those of
    :func:`tvmtune.remote.server.session.prepare`."""
    die_with(options["parent"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    orders = socket.socket(fileno=descriptor)

    def report(message: dict[str, Any]) -> None:
        orders.sendall(json.dumps(message).encode() + b"\n")

    try:
        versions = _import(options)
    except Exception as error:
        text = " ".join(str(error).split())
        ours = isinstance(error, TvmtuneError)
        report({"failed": text if ours else f"{type(error).__name__}: {text}"})
        return
    wake, woken = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    report({"ready": versions})
    own = (descriptor, wake, woken)
    folders: dict[int, Path] = {}
    while True:
        ready, _, _ = select.select([descriptor, wake], [], [])
        if wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake, _LINE)
            for pid, status in _reap():
                if pid in folders:
                    report({"ended": pid, "status": status})
                    shutil.rmtree(folders.pop(pid), ignore_errors=True)
        if descriptor in ready:
            data, connections, _, _ = socket.recv_fds(orders, _LINE, 1)
            if not data:
                return
            order = json.loads(data)
            try:
                if "ping" in order:
                    report({"pong": True})
                elif "answer" in order:
                    _fork(own, partial(_answer, connections[0], order["answer"]))
                else:
                    Path(options["folder"]).mkdir(exist_ok=True)
                    folder = Path(tempfile.mkdtemp(prefix="session-", dir=options["folder"]))
                    pid = _fork(own, partial(_session, connections[0], folder, options))
                    folders[pid] = folder
                    report({"begun": pid, "number": order["serve"]})
            except OSError as error:  # no memory, no space, too many processes
                report({"refused": error.strerror or str(error), "number": order.get("serve", -1)})
            finally:
                for connection in connections:
                    os.close(connection)


def _reap() -> list[tuple[int, int]]:
    """Process id and wait status of each child that has ended."""
    ended = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            ended.append((pid, status))
    return ended


def _import(options: dict[str, Any]) -> dict[str, str]:
    """Import what sessions need, once for all of them; returns versions."""
    import tvm
    import tvm.rpc
    import tvm_ffi

    from tvmtune.remote.server import session

    session.check(options)
    return {"apache-tvm": str(tvm.__version__), "apache-tvm-ffi": str(tvm_ffi.__version__)}


def _fork(own: Sequence[int], work: Callable[[], None]) -> int:
    """Fork a child that does ``work`` in its own process group and exits; returns its process id.
    ``own``: descriptors that the child closes."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _child(parent, own, work)
    return pid


def _child(parent: int, own: Sequence[int], work: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        os.setsid()
        die_with(parent)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        for descriptor in own:
            os.close(descriptor)
        _prefer_for_oom_kill()
        work()
        code = 0
    except BaseException as error:
        print(f"session: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def _session(connection: int, folder: Path, options: dict[str, Any]) -> None:
    """Serve one client."""
    try:
        os.chdir(folder)
        from tvmtune.remote.server import session

        loop = session.prepare(folder, options)
    except Exception as error:
        _answer(connection, f"the board could not prepare the session: {error}")
        return
    try:
        loop(connection)
    except Exception as error:
        # A client that leaves while an answer is on its way resets the connection.
        if not any(sign in str(error) for sign in ("Connection reset", "Broken pipe")):
            raise


def _answer(connection: int, message: str) -> None:
    """Send an error to a client that waits for a result, and make sure that it arrives."""
    import tvm

    signal.alarm(_ERROR_SEND_TIMEOUT)  # do not wait for a client that does not read
    tvm.get_global_func("rpc.ReturnException")(connection, message)
    with contextlib.suppress(OSError), socket.socket(fileno=connection) as line:
        # Closing it with unread data would reset the connection and lose the error.
        line.shutdown(socket.SHUT_WR)
        while line.recv(_LINE):
            pass


def die_with(parent: int) -> None:
    """Have this process killed when ``parent`` ends, however it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has already ended
            os._exit(1)


def _prefer_for_oom_kill() -> None:
    """If memory runs out, the kernel should kill a session, not the board's server."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    block_torch_import.install()
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
