"""TVM's RPC tracker under supervision: it is looked at every few seconds, and started again if it has
died or does not answer. Boards served by tvmtune register again by themselves."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from tvmtune.errors import TvmtuneError
from tvmtune.farm.protocol import Address, Tracker, Unreachable

LOOK = 5.0
"""Seconds between two looks."""
START = 30.0
"""Seconds in which a tracker has to answer first."""
MISSED = 2
"""Looks without an answer after which it is started again."""

_CHILD = """
import ctypes, signal, sys, threading
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
from tvm.rpc.tracker import PopenTrackerServerState
state = PopenTrackerServerState({host!r}, {port}, {port} + 1, silent=True)
state.thread.join()
"""
"""TVM starts its tracker in a process that is hard to look after; this is the same in one of ours."""


class Supervised:
    """A tracker at ``address``. Raises :class:`TvmtuneError` if the port is in use, or if it does not
    come up."""

    def __init__(self, address: Address, say: Callable[[str], None]) -> None:
        self.address = address
        self.say = say
        self._stopping = threading.Event()
        with contextlib.suppress(Unreachable):
            Tracker(_reachable(address), patience=2.0).close()
            raise TvmtuneError(
                f"a tracker is running at {address} already. Choose another port with --port."
            )
        self._process = self._start()

    def watch(self) -> None:
        """Until :meth:`stop` is called from a signal handler or another thread."""
        missed = 0
        try:
            while not self._stopping.wait(LOOK):
                if self._process.poll() is None and self._answers():
                    missed = 0
                    continue
                missed += 1
                if self._process.poll() is not None or missed >= MISSED:
                    self.say("the tracker had died: starting it again")
                    self._end()
                    self._process = self._start()
                    missed = 0
        finally:
            self._end()

    def stop(self) -> None:
        self._stopping.set()

    def _start(self) -> subprocess.Popen[bytes]:
        code = _CHILD.format(host=self.address.host, port=self.address.port)
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        deadline = time.monotonic() + START
        while time.monotonic() < deadline and not self._stopping.is_set():
            if process.poll() is not None:
                assert process.stderr is not None
                words = process.stderr.read().decode(errors="replace").strip().splitlines()
                raise TvmtuneError(
                    f"no tracker can be started at {self.address}: "
                    f"{words[-1] if words else f'exit status {process.returncode}'}"
                )
            if self._answers():
                return process
            time.sleep(0.1)
        process.kill()
        process.wait()
        raise TvmtuneError(f"the tracker at {self.address} did not come up within {START:.0f} s")

    def _answers(self) -> bool:
        try:
            with Tracker(_reachable(self.address), patience=2.0) as tracker:
                tracker.summary()
        except TvmtuneError:
            return False
        return True

    def _end(self) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _reachable(address: Address) -> Address:
    """Where this machine finds it: one that listens everywhere does so here, too."""
    return Address("127.0.0.1", address.port) if address.host in ("0.0.0.0", "") else address
