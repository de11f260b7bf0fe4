"""Imported once by the forkserver, so that forked workers start with TVM loaded."""

import gc

from tvmtune import block_torch_import

block_torch_import.install()

import tvm  # noqa: E402
import tvm.relax  # noqa: E402
import tvm.s_tir  # noqa: E402, F401

from tvmtune.spaces import tensor_intrinsics  # noqa: E402

tensor_intrinsics.load_for("llvm")

# All this lives as long as the workers: their garbage collectors need not traverse it.
gc.collect()
gc.freeze()
