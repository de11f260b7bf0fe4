"""Functions for worker processes: a kernel that fails, and the GPU a process gets."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from tvmtune_cuda import worker
from tvmtune_cuda.target import VISIBLE


def call(message: str) -> int:
    """Return this process's ID, or raise an error with TVM's wording."""

    def work() -> int:
        if message:
            raise RuntimeError(message)
        return os.getpid()

    return worker._or_exit(work)


def take(options: dict[str, Any]) -> None:
    """The part of a worker's startup that needs no GPU."""
    worker.take(options["gpus"], Path(options["directory"]))


def visible(folder: str) -> tuple[int, str]:
    """This process's ID and visible GPU, once a second process has answered, too."""
    here = Path(folder)
    (here / f"{os.getpid()}.answers").touch()
    end = time.monotonic() + 50
    while len(list(here.glob("*.answers"))) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    return os.getpid(), os.environ[VISIBLE]
