"""Imported once by the server that workers are forked from."""

import ctypes
import gc
import signal
import sys
import warnings

# Ctrl-C is the session's to answer; a server that dies of it while it starts prints a traceback.
signal.signal(signal.SIGINT, signal.SIG_IGN)

if sys.platform == "linux":
    # What a worker leaves behind is waited for by the server, not by process 1, which in a container
    # may never do it. The server has a warning for processes that it did not start itself.
    PR_SET_CHILD_SUBREAPER = 36
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    warnings.filterwarnings("ignore", "forkserver: waitpid returned unexpected pid")

from tvmtune import torchless  # noqa: E402

torchless.install()

import tvm  # noqa: E402
import tvm.relax  # noqa: E402
import tvm.s_tir  # noqa: E402, F401

from tvmtune.graph import intrinsics  # noqa: E402

intrinsics.load_for("llvm")

# All this lives as long as a worker does: its garbage collector need not walk through it each time.
gc.collect()
gc.freeze()
