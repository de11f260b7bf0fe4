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
from tvmtune.workers.forking import Children, die_with

_PR_SET_CHILD_SUBREAPER = 36
_MESSAGE = 1 << 16
DESCRIPTORS = 2
"""Descriptors that come with an order: the worker's end of its channel, and the file for its output."""


def main(descriptor: int, preload: str) -> None:
    """Import the module ``preload``, then serve orders from the socket ``descriptor``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the session handles Ctrl-C
    orders = socket.socket(fileno=descriptor)
    if sys.platform == "linux":
        # It reaps orphans of workers, not process 1, which in a container may never do it.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    die_with(os.getppid())  # even while it is stopped and cannot notice that the socket closes
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the session has ended
        try:
            importlib.import_module(preload)
        except Exception as error:
            _report(orders, {"failed": f"{type(error).__name__}: {error}"[:1000]})
            return
        _serve(orders)


def _serve(orders: socket.socket) -> None:
    children = Children()
    _report(orders, {"ready": os.getpid()})
    poll = select.poll()  # descriptors may be too high for select
    poll.register(orders, select.POLLIN)
    poll.register(children.descriptor, select.POLLIN)
    workers: set[int] = set()
    while True:
        ready = [descriptor for descriptor, _ in poll.poll()]
        if children.descriptor in ready:
            for pid, status in children.reap():
                if pid in workers:
                    workers.remove(pid)
                    _end_group(pid)
                code = os.waitstatus_to_exitcode(status)
                _report(orders, {"ended": pid, "code": code})
        if orders.fileno() in ready:
            data, descriptors, _, _ = socket.recv_fds(orders, _MESSAGE, DESCRIPTORS)
            if not data:
                return
            number = json.loads(data)["begin"]
            try:
                if len(descriptors) < DESCRIPTORS:  # this process has too many open files
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                pid = _fork(descriptors, orders, children)
            except OSError as error:  # no memory, too many processes
                _report(orders, {"refused": number, "errno": error.errno})
            else:
                workers.add(pid)
                _report(orders, {"begun": number, "pid": pid})
            finally:
                for each in descriptors:
                    os.close(each)


def _end_group(worker: int) -> None:
    """End what is left of the process group of a worker that has ended: its shell, which does that too
    (worker_process.py), may have been killed as well, or never have started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(worker, signal.SIGKILL)


def _report(orders: socket.socket, message: dict[str, Any]) -> None:
    orders.sendall(json.dumps(message).encode())


def _fork(descriptors: list[int], orders: socket.socket, children: Children) -> int:
    """Fork a worker; returns its process id."""
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        _child(server, descriptors, orders, children)
    return pid


def _child(
    server: int, descriptors: list[int], orders: socket.socket, children: Children
) -> NoReturn:
    code = 1
    try:
        die_with(server)
        children.leave([signal.SIGTERM])
        orders.close()
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
