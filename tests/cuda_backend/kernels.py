"""What stands in for a kernel that breaks things, in a worker."""

from __future__ import annotations

import os

from tvmtune_cuda import worker


def call(said: str) -> int:
    """This process's id, or an error as TVM words it."""

    def work() -> int:
        if said:
            raise RuntimeError(said)
        return os.getpid()

    return worker._or_end(work)
