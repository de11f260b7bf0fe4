"""Run a library, on this machine or on a board."""
