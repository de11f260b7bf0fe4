"""Range checks for option values. Each error names the option as the command line spells it.

They raise :class:`UsageError`, so that the Python API and the command line give the same message.
"""

from __future__ import annotations

from tvmtune.errors import UsageError


def at_least(option: str, value: float | None, minimum: int) -> None:
    """None means that the option is not set, which is fine."""
    if value is not None and not value >= minimum:
        raise UsageError(f"{option} must be at least {minimum}, not {value}")


def above_zero(option: str, value: float | None) -> None:
    """None means that the option is not set, which is fine."""
    if value is not None and not value > 0:
        raise UsageError(f"{option} must be above 0, not {value:g}")


def fraction(option: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise UsageError(f"{option} must be from 0 to 1, not {value:g}")
