"""Progress of a compilation on stderr: a bar in a terminal, a line per phase elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tvmtune import phases
from tvmtune.cli import messages
from tvmtune.cli.output import bar, console


@contextlib.contextmanager
def shown(*, verbose: bool = False, lines: bool = True) -> Iterator[None]:
    """Show what happens inside. Without a terminal, and with ``verbose``, print a line for each phase,
    or nothing if ``lines`` is false."""
    if not messages.shown(messages.INFO):
        yield
        return
    out = console(stderr=True)
    if not out.is_terminal or verbose:
        with phases.listening(_Lines()) if lines else contextlib.nullcontext():
            yield
        return
    from rich.progress import TimeElapsedColumn

    with bar(TimeElapsedColumn(), console=out, transient=True) as progress:
        task = progress.add_task("starting", total=None)

        def update(phase: str, done: int, total: int) -> None:
            counted = f" {done}/{total}" if total else ""
            progress.update(
                task, description=f"{phase}{counted}", completed=done, total=total or None
            )

        with phases.listening(update):
            yield


class _Lines:
    """Prints each phase as it begins."""

    def __init__(self) -> None:
        self._phase = ""

    def __call__(self, phase: str, done: int, total: int) -> None:
        if phase != self._phase:
            self._phase = phase
            messages.info(f"{phase} ({total})" if total else phase)
