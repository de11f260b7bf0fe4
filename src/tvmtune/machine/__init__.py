"""This machine: CPUs, features, threads, versions, linkers, background load, interrupts."""
