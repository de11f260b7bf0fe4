"""Imported once by the server that workers are forked from."""

import tvm
import tvm.relax
import tvm.s_tir  # noqa: F401

from tvmtune.graph import intrinsics

intrinsics.load_for("llvm")
