"""From networks to fused workloads, their spaces, and back to scheduled networks."""
