"""What stands in for a kernel that breaks things, in a worker."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from tvmtune_cuda import worker


def call(said: str) -> int:
    """This process's id, or an error as TVM words it."""

    def work() -> int:
        if said:
            raise RuntimeError(said)
        return os.getpid()

    return worker._or_end(work)


def settle(options: dict[str, Any]) -> None:
    """The part of a worker's start that needs no GPU."""
    if options["told"]:
        os.environ[worker.VISIBLE] = options["told"]
    worker.settle(options["gpus"], Path(options["directory"]))


def visible(*_: int) -> tuple[int, str]:
    """This process's id, and the GPUs that CUDA would show it."""
    time.sleep(0.2)  # so that no process answers for all
    return os.getpid(), os.environ[worker.VISIBLE]
