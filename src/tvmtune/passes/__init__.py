"""From a network to fused workloads: Relax and TensorIR passes."""
