"""The vta backend: the Versatile Tensor Accelerator, its instructions, their rules and simulator."""
