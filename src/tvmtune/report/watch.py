"""Follow logs that grow: make the page again whenever one of them has changed."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tvmtune.errors import TvmtuneError

SECONDS = 10.0
"""Between two looks at the logs, and between two loads of the page."""
REST = 4
"""Making the page may take one of so many parts of the time: whoever tunes here measures meanwhile."""


def follow(
    paths: Sequence[Path],
    render: Callable[[], None],
    *,
    failed: Callable[[TvmtuneError], None],
    interval: float = SECONDS,
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Call ``render`` now and after each change of a log, until Ctrl-C or ``until()`` is true.

    An error of the first call is raised; later ones go to ``failed``, because a log may be moved and
    come back.
    """
    with contextlib.suppress(OSError):
        os.nice(19 - os.nice(0))
    seen = None
    while True:
        state = [_state(path) for path in paths]
        began = time.monotonic()
        if state != seen:
            try:
                render()
            except TvmtuneError as error:
                if seen is None:
                    raise
                failed(error)
            seen = state
        if until():
            return
        time.sleep(max(interval, REST * (time.monotonic() - began)))


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None  # between a removal and the next run; reading it names the problem
    return found.st_ino, found.st_size, found.st_mtime_ns
