"""The log: writing it, reading it, and choosing its best records."""
