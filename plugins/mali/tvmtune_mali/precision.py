"""Kinds of numbers that a device may lack."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tvmtune.errors import TvmtuneError
from tvmtune.types import Device, Task

EXTENSIONS = {"float16": "cl_khr_fp16", "float64": "cl_khr_fp64"}


def check(tasks: Sequence[Task], device: Device) -> None:
    """Raise :class:`TvmtuneError` if a task computes in what the device is known to lack."""
    told = device.params["extensions"]
    if not told:
        return
    lacking = {dtype: name for dtype, name in EXTENSIONS.items() if name not in told}
    for task in tasks if lacking else ():
        text = task.implementations[0].mod.script()
        for dtype, extension in lacking.items():
            if re.search(rf"\b{dtype}\b", text):
                raise TvmtuneError(
                    f"{device.model} cannot compute in {dtype} ({extension}), which {task.name} does: "
                    "leave --dtype away, or give the network in float32."
                )
