"""Code generation: from convolutions and sums to programs. Pure functions without TVM."""
