"""Simulation: compare tuners on completely measured spaces, without a device."""
