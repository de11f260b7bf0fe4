"""The vta backend: convolutions on the Versatile Tensor Accelerator, the rest on the CPU beside it.

:mod:`tvmtune_vta.hooks` implements the hooks. This module is empty so that boards can run
:mod:`tvmtune_vta.server` without TVM and pluggy.
"""
