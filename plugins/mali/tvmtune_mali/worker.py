"""What a process does that measures on this machine's OpenCL device."""

from __future__ import annotations

import os
import tempfile
from typing import Any


def init(options: dict[str, Any]) -> None:
    """Have TVM run OpenCL here. References are computed by this process, too, on
    ``options["threads"]`` threads; none of them is bound to a CPU, because a driver for CPUs starts
    threads that inherit it."""
    import tvmtune_opencl
    from tvmtune import threads

    # PoCL keeps every kernel that it builds; those of candidates go with the other leftovers of
    # processes that have ended.
    if "POCL_CACHE_DIR" not in os.environ:
        os.environ["POCL_CACHE_DIR"] = tempfile.mkdtemp(prefix=f"tvmtune-{os.getpid()}-pocl-")
    tvmtune_opencl.load()
    threads.share(int(options["threads"]))
