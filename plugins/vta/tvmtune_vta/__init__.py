"""The vta backend: convolutions on the Versatile Tensor Accelerator, the rest on the CPU beside it.

What tvmtune asks of it is in :mod:`tvmtune_vta.hooks`; this module is empty for boards that run
streams without TVM and pluggy.
"""
