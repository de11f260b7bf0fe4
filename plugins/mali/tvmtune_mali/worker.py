"""Run workers that measure on this machine's OpenCL device."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def init(options: dict[str, Any]) -> None:
    """Enable OpenCL for TVM. This process also computes references, on ``options["threads"]`` threads;
    none is bound to a CPU, because an OpenCL driver for CPUs starts threads that inherit the binding.
    ``options["environment"]`` is the session's, ``options["directory"]`` its folder."""
    import tvmtune_opencl
    from tvmtune.machine import threads
    from tvmtune_mali import devices

    devices.take_over(options["environment"])
    # PoCL caches every kernel that it builds; those of candidates are deleted with the session.
    os.environ.setdefault("POCL_CACHE_DIR", str(Path(options["directory"]) / "pocl"))
    tvmtune_opencl.load()
    threads.share(int(options["threads"]))
