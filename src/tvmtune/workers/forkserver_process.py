"""The process that workers are forked from: it imports TVM once and does nothing but fork.

It takes orders over a Unix socket, one message each, together with the descriptors for the new worker,
and reports which workers began and ended, and which could not be forked. It ends with its session, even
after kill -9, because the socket closes; its workers end with it.

Why not multiprocessing's: a session waits for it without a deadline, it ends when a fork fails, and it
runs the session's main module again in each worker.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from typing import Any, NoReturn

from tvmtune.workers import worker_process

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_MESSAGE = 1 << 16
DESCRIPTORS = 2
"""Descriptors that come with an order: the worker's end of its channel, and the file for its output."""


def main(descriptor: int, preload: str) -> None:
    """Import the module ``preload``, then serve orders from the socket ``descriptor``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the session handles Ctrl-C
    orders = socket.socket(fileno=descriptor)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        # It reaps orphans of workers, not process 1, which in a container may never do it.
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        # Even while it is stopped and cannot notice that the socket closes.
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the session has ended
        try:
            importlib.import_module(preload)
        except Exception as error:
            _report(orders, {"failed": f"{type(error).__name__}: {error}"[:1000]})
            return
        _serve(orders)


def _serve(orders: socket.socket) -> None:
    wake, woken = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    _report(orders, {"ready": os.getpid()})
    poll = select.poll()  # descriptors may be too high for select
    poll.register(orders, select.POLLIN)
    poll.register(wake, select.POLLIN)
    workers: set[int] = set()
    while True:
        ready = [descriptor for descriptor, _ in poll.poll()]
        if wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake, _MESSAGE)
            _reap(orders, workers)
        if orders.fileno() in ready:
            data, descriptors, _, _ = socket.recv_fds(orders, _MESSAGE, DESCRIPTORS)
            if not data:
                return
            number = json.loads(data)["begin"]
            try:
                if len(descriptors) < DESCRIPTORS:  # this process has too many open files
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                pid = _fork(descriptors, [orders.fileno(), wake, woken])
            except OSError as error:  # no memory, too many processes
                _report(orders, {"refused": number, "errno": error.errno})
            else:
                workers.add(pid)
                _report(orders, {"begun": number, "pid": pid})
            finally:
                for each in descriptors:
                    os.close(each)


def _reap(orders: socket.socket, workers: set[int]) -> None:
    """Report which children have ended, and end what is left of each worker's process group: its shell,
    which does that too (worker_process.py), may have been killed as well, or never have started."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            if pid in workers:
                workers.remove(pid)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
            _report(orders, {"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _report(orders: socket.socket, message: dict[str, Any]) -> None:
    orders.sendall(json.dumps(message).encode())


def _fork(descriptors: list[int], own: list[int]) -> int:
    """Fork a worker; returns its process id. ``own``: descriptors that it closes."""
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        _child(server, descriptors, own)
    return pid


def _child(server: int, descriptors: list[int], own: list[int]) -> NoReturn:
    code = 1
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != server:
                os._exit(1)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for each in own:
            os.close(each)
        connection, output = descriptors
        worker_process.main(socket.socket(fileno=connection), output)
        code = 0
    except (EOFError, OSError):  # the session has ended
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)
