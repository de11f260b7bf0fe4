"""The library file: code, weights and metadata."""

SHARED = (".so",)
STATIC = (".o", ".a", ".tar")
"""What the names of libraries end in."""
