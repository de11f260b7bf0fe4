"""Imported once by the fork server, so that forked workers start with TVM loaded."""

import ctypes
import gc
import signal
import sys
import warnings
from types import TracebackType

# The session handles Ctrl-C; a server that dies of it during start-up would print a traceback.
signal.signal(signal.SIGINT, signal.SIG_IGN)


def _report_failed_start(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """A worker that is forked while its session ends finds the session's semaphores gone: that is no
    error. The fork server calls this for workers that fail to start, before any of their own code."""
    if not issubclass(kind, FileNotFoundError):
        sys.__excepthook__(kind, error, traceback)


sys.excepthook = _report_failed_start

if sys.platform == "linux":
    # The server reaps orphans of workers, not process 1, which in a container may never do it. It
    # warns about processes that it did not start itself.
    PR_SET_CHILD_SUBREAPER = 36
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    warnings.filterwarnings("ignore", "forkserver: waitpid returned unexpected pid")

from tvmtune import block_torch_import  # noqa: E402

block_torch_import.install()

import tvm  # noqa: E402
import tvm.relax  # noqa: E402
import tvm.s_tir  # noqa: E402, F401

from tvmtune.spaces import tensor_intrinsics  # noqa: E402

tensor_intrinsics.load_for("llvm")

# All this lives as long as the workers: their garbage collectors need not traverse it.
gc.collect()
gc.freeze()
