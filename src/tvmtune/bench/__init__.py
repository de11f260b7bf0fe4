"""Time a library, check its output, compare it with other runtimes."""
