"""Functional simulators: a readable reference, and one fast enough for whole networks."""
