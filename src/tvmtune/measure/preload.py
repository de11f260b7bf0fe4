"""Imported once by the server that workers are forked from."""

import gc
import signal

# Ctrl-C is the session's to answer; a server that dies of it while it starts prints a traceback.
signal.signal(signal.SIGINT, signal.SIG_IGN)

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
