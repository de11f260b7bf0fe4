"""Tuning tasks: extracted from a network, and applied to it with the chosen schedules."""
