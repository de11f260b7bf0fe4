"""What processes that fork others have in common: they end with their parent, and learn which children
have ended while they wait for orders."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator, Sequence

_PR_SET_PDEATHSIG = 1
_READ = 1 << 16


def die_with(parent: int) -> None:
    """Have this process killed when ``parent`` ends, however it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has already ended
            os._exit(1)


class Children:
    """The children of this process, which must not have other uses for SIGCHLD."""

    def __init__(self) -> None:
        self.descriptor, self._woken = os.pipe()
        """Readable once a child has ended."""
        for each in (self.descriptor, self._woken):
            os.set_blocking(each, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._woken)

    def reap(self) -> Iterator[tuple[int, int]]:
        """Process id and wait status of each child that has ended."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.descriptor, _READ)
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                yield pid, status

    def leave(self, signals: Sequence[int]) -> None:
        """In a child: have nothing to do with its siblings, and the default handlers of ``signals``."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, *signals):
            signal.signal(number, signal.SIG_DFL)
        for each in (self.descriptor, self._woken):
            os.close(each)
