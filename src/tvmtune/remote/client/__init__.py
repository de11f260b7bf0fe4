"""Leasing a board from the tracker and calling functions on it."""
