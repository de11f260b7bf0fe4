"""What stands in for a kernel that breaks things, in a worker."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from tvmtune_cuda import worker
from tvmtune_cuda.target import VISIBLE


def call(said: str) -> int:
    """This process's id, or an error as TVM words it."""

    def work() -> int:
        if said:
            raise RuntimeError(said)
        return os.getpid()

    return worker._or_end(work)


def take(options: dict[str, Any]) -> None:
    """The part of a worker's start that needs no GPU."""
    worker.take(options["gpus"], Path(options["directory"]))


def visible(folder: str) -> tuple[int, str]:
    """This process's id, and the GPU that CUDA would show it, once another process answers as well."""
    here = Path(folder)
    (here / f"{os.getpid()}.answers").touch()
    end = time.monotonic() + 50
    while len(list(here.glob("*.answers"))) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    return os.getpid(), os.environ[VISIBLE]
