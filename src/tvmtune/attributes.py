"""``--target-attr``: what all backends ask of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tvmtune.errors import UsageError, nearest


def check(given: Iterable[str], known: Iterable[str]) -> None:
    """Raise :class:`UsageError` for the first name that a backend does not know."""
    known = [*known]
    for name in given:
        if name not in known:
            raise UsageError(f"target attribute '{name}' is not known.{nearest(name, known)}")


def number(name: str, given: Any, most: int | None = None) -> int:
    """A whole number from 1 to ``most``. Raises :class:`UsageError` for all else."""
    try:
        count = int(given)
    except (ValueError, TypeError, OverflowError):
        raise UsageError(f"{name}={given} is not a number.") from None
    if count < 1 and most is None:
        raise UsageError(f"{name}={given}: at least 1 is needed.")
    if count < 1 or (most is not None and count > most):
        raise UsageError(f"{name}={given}: it has to be from 1 to {most}.")
    return count
