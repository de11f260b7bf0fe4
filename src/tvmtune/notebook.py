"""Progress of tuning for Python programs and notebooks."""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING, Any

from tvmtune.cli import progress as shown
from tvmtune.cli.output import clock, milliseconds
from tvmtune.tuning.observer import Observer, SessionView

if TYPE_CHECKING:
    from tvmtune.tuning.state import ImplementationState, TaskState
    from tvmtune.types import Trial

__all__ = ["progress"]

WIDTH = 110
"""Columns of the table in a notebook."""
INTERVAL = 0.5
"""Seconds between two updates of it."""


def progress(*, verbose: bool = False) -> Observer:
    """An observer for :func:`tvmtune.tune` that shows what ``tvmtune tune`` does.

    A table of the tasks that is updated in place in a notebook and in a terminal, plain lines on stderr
    elsewhere. ``verbose``: always lines, one for each trial. Use it for one call of ``tune``.
    """
    if not verbose and _in_notebook():
        return NotebookTable()
    return shown.observer(verbose)


class NotebookTable(shown.ProgressObserver):
    """A table of all tasks in the output of a notebook's cell; the last state stays."""

    def __init__(self) -> None:
        super().__init__()
        self._next: TaskState | None = None
        self._handle: Any = None
        self._updated = 0.0

    def print(self, text: str) -> None:
        print(text)

    def started(self, session: SessionView) -> None:
        from IPython.display import display

        super().started(session)
        self._handle = display(self._bundle(), raw=True, display_id=True)

    def proposing(self, state: TaskState, impl: ImplementationState) -> None:
        self._next = state
        self._update()

    def trial(self, state: TaskState, trial: Trial) -> None:
        self._update()

    def finished(self, session: SessionView) -> None:
        self._next = None
        self._update(now=True)

    def _update(self, *, now: bool = False) -> None:
        if self._handle is None or not (now or time.monotonic() - self._updated > INTERVAL):
            return
        self._updated = time.monotonic()
        self._handle.update(self._bundle(), raw=True)

    def _bundle(self) -> dict[str, str]:
        """The table as HTML and as text, by MIME type."""
        from rich.console import Console

        session = self.session
        assert session is not None
        # Not for a notebook: it would display what it records.
        console = Console(
            file=io.StringIO(), force_jupyter=False, record=True, width=WIDTH, highlight=False
        )
        console.print(shown.task_table(session, self._next, width=WIDTH))
        console.print(
            f"{session.total} trials, estimate {milliseconds(session.estimate())}, "
            f"{clock(session.elapsed)} elapsed",
            end="",
        )
        page = console.export_html(
            inline_styles=True,
            clear=False,
            code_format='<pre style="white-space:pre;line-height:normal">{code}</pre>',
        )
        return {"text/html": page, "text/plain": console.export_text()}


def _in_notebook() -> bool:
    """Whether IPython runs in a notebook's kernel, not in a terminal."""
    import sys

    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return bool(getattr(get_ipython(), "kernel", None))
