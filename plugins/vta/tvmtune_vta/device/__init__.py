"""Accelerators that run programs: simulated, in an FPGA, or behind an HTTP server."""
