"""Build, time and check candidates, in processes that are killed at a deadline."""
