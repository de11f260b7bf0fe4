"""Consoles for results and progress, and formats of numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn


def console(*, stderr: bool = False) -> Console:
    """A console for results (stdout) or progress (stderr); 160 columns wide if not a terminal."""
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False)
    if not made.is_terminal:
        made = Console(stderr=stderr, highlight=False, width=160)
    return made


def bar(*columns: ProgressColumn, **options: Any) -> Progress:
    """A progress bar after its description and before ``columns``; ``options`` are rich's."""
    from rich.progress import BarColumn, Progress, TextColumn

    description = TextColumn("{task.description}", markup=False)
    return Progress(description, BarColumn(bar_width=40), *columns, **options)


def milliseconds(seconds: float) -> str:
    """``3.21 ms``, or ``-`` if unknown."""
    return f"{seconds * 1e3:.3f} ms" if seconds < float("inf") else "-"


def counted(count: int, noun: str) -> str:
    """``1 task`` or ``2 tasks``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def clock(seconds: float) -> str:
    """``1:02:03`` or ``2:03``."""
    whole = int(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"
