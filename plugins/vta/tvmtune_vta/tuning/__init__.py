"""Tuning: tasks, their search space, and the functions that workers run."""
