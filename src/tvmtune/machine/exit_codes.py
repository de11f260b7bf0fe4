"""Exit codes of processes: negative for a signal, as Python has them."""

from __future__ import annotations

import signal

_SHELL = 128
"""A shell adds it to the number of the signal that ended a command."""


def describe(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def ended_by(code: int) -> int:
    """The number of the signal that ended the process, or a command whose exit code it passes on as a
    shell does; 0 if it exited."""
    if code < 0:
        return -code
    return code - _SHELL if code > _SHELL else 0
