"""The version of tvmtune; pyproject.toml reads it from here."""

__version__ = "0.1.0"
