"""The library file: code, weights and metadata."""
