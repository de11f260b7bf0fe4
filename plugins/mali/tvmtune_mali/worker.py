"""What a process does that measures on this machine's OpenCL device."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def init(options: dict[str, Any]) -> None:
    """Have TVM run OpenCL here. References are computed by this process, too, on
    ``options["threads"]`` threads; none of them is bound to a CPU, because a driver for CPUs starts
    threads that inherit it. ``options["environment"]`` is the session's, ``options["directory"]`` its
    folder."""
    import tvmtune_opencl
    from tvmtune import threads
    from tvmtune_mali import devices

    devices.take_over(options["environment"])
    # PoCL keeps every kernel that it has built; those of candidates go with the session.
    os.environ.setdefault("POCL_CACHE_DIR", str(Path(options["directory"]) / "pocl"))
    tvmtune_opencl.load()
    threads.share(int(options["threads"]))
