"""Operator implementations in addition to TVM's: Winograd, implicit GEMM, split-K, dot products."""
