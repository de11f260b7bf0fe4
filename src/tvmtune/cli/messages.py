"""Messages on stderr, and from which level on they are shown (``-v``, ``-q``, ``--log-level``)."""

from __future__ import annotations

import click

DEBUG, INFO, WARNING, ERROR = range(4)
LEVELS = ("debug", "info", "warning", "error")
"""Names of the levels, in their order. ``info``: progress and notes; ``debug``: also a line per trial,
and tracebacks."""

_lowest = INFO


def show_from(level: int) -> None:
    """Show messages of ``level`` and above."""
    global _lowest
    _lowest = level


def shown(level: int) -> bool:
    return level >= _lowest


def info(text: str) -> None:
    """Progress, and notes on what was done."""
    if shown(INFO):
        click.echo(text, err=True)


def warning(text: str) -> None:
    """What the user should know even if all is well otherwise."""
    if shown(WARNING):
        click.echo(text, err=True)
