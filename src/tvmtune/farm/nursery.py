"""Where a board's sessions come from: a process that has imported TVM, and forks.

It runs as ``python -m tvmtune.farm.nursery FD OPTIONS`` and takes orders over a Unix socket, a JSON
line each, with the connection that it is about: ``serve`` forks a session that serves it, ``answer``
one that gives its client an error in the place of the result that it waits for. It reports what it
started and what ended. It is single-threaded, runs nothing that a client sent and waits for no client,
so it has no reason to die or to hang; should it die, the supervisor (sessions.py) starts another.
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

from tvmtune import torchless
from tvmtune.errors import TvmtuneError

DIED = "the board's process died: "
"""How the message begins that a client gets whose candidate took its process down."""

_PR_SET_PDEATHSIG = 1
_LINE = 1 << 16
_FAREWELL = 5
"""Seconds that a client has to take in its error."""


def main(descriptor: int, options: dict[str, Any]) -> None:
    """The nursery itself. ``options``: ``folder``, where sessions get folders of their own; ``parent``,
    the supervisor's process id; and what :func:`tvmtune.farm.board.serve` takes."""
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
            for pid, status in _ended():
                if pid in folders:
                    report({"ended": pid, "status": status})
                    shutil.rmtree(folders.pop(pid), ignore_errors=True)
        if descriptor in ready:
            data, connections, _, _ = socket.recv_fds(orders, _LINE, 1)
            if not data:
                return
            order = json.loads(data)
            try:
                if "answer" in order:
                    _fork(own, partial(_answer, connections[0], order["answer"]))
                else:
                    Path(options["folder"]).mkdir(exist_ok=True)
                    folder = Path(tempfile.mkdtemp(prefix="session-", dir=options["folder"]))
                    pid = _fork(own, partial(_session, connections[0], folder, options))
                    folders[pid] = folder
                    report({"begun": pid})
            except OSError as error:  # no memory, no space, too many processes
                report({"refused": error.strerror or str(error)})
            finally:
                for connection in connections:
                    os.close(connection)


def _ended() -> list[tuple[int, int]]:
    found = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            found.append((pid, status))
    return found


def _import(options: dict[str, Any]) -> dict[str, str]:
    """What each session needs, once for all of them."""
    import tvm
    import tvm.rpc
    import tvm_ffi

    from tvmtune.farm import board

    board.check(options)
    return {"apache-tvm": str(tvm.__version__), "apache-tvm-ffi": str(tvm_ffi.__version__)}


def _fork(own: Sequence[int], work: Callable[[], None]) -> int:
    """A child that does ``work`` in a process group of its own, and ends; returns its process id.
    ``own``: descriptors that it has no business with."""
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
        _first_to_go()
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
        from tvmtune.farm import board

        loop = board.prepare(folder, options)
    except Exception as error:
        _answer(connection, f"the board could not prepare the session: {error}")
        return
    try:
        loop(connection)
    except Exception as error:
        # A client that leaves with an answer on its way resets the line; it has gone all the same.
        if not any(sign in str(error) for sign in ("Connection reset", "Broken pipe")):
            raise


def _answer(connection: int, message: str) -> None:
    """Send an error to a client that waits for a result, and see that it arrives."""
    import tvm

    signal.alarm(_FAREWELL)  # a client that takes nothing in is left alone
    tvm.get_global_func("rpc.ReturnException")(connection, message)
    with contextlib.suppress(OSError), socket.socket(fileno=connection) as line:
        # Closed with something unread in it, the connection would be reset, and the error lost.
        line.shutdown(socket.SHUT_WR)
        while line.recv(_LINE):
            pass


def die_with(parent: int) -> None:
    """Have this process killed when ``parent`` ends, however it does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was quicker
            os._exit(1)


def _first_to_go() -> None:
    """Where memory runs out, a session goes, not the board's server."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    torchless.install()
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
