"""The warning for what runs in PyTorch's eager mode."""

from __future__ import annotations

import warnings


class EagerFallback(UserWarning):
    """A part of a program runs in PyTorch's eager mode; the message says why."""


def warn(reason: str) -> None:
    """Say that something runs in eager mode, and why."""
    warnings.warn(f"not compiled by tvmtune, runs in eager mode: {reason}", EagerFallback, 2)
