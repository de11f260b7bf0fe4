"""Checks of ``--target-attr`` values that backends share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tvmtune import checks
from tvmtune.errors import UsageError, nearest


def check(given: Iterable[str], known: Iterable[str]) -> None:
    """Raise :class:`UsageError` for the first name that is not in ``known``."""
    known = [*known]
    for name in given:
        if name not in known:
            raise UsageError(f"target attribute '{name}' is not known.{nearest(name, known)}")


def number(name: str, given: Any, most: int | None = None) -> int:
    """An integer from 1 to ``most``. Raises :class:`UsageError` for anything else."""
    try:
        count = int(given)
    except (ValueError, TypeError, OverflowError):
        raise UsageError(f"{name}={given} is not a number") from None
    if most is None:
        checks.at_least(name, count, 1)
    elif not 1 <= count <= most:
        raise UsageError(f"{name}={given}: it must be from 1 to {most}")
    return count
