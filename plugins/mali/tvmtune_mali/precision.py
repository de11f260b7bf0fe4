"""Floating-point types that a device may not support."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tvmtune.errors import TvmtuneError
from tvmtune.types import Device, Task

EXTENSIONS = {"float16": "cl_khr_fp16", "float64": "cl_khr_fp64"}
UNKNOWN = "bfloat16"
"""OpenCL C has no such type, and no driver builds what TVM 0.27 emits for it."""


def check(tasks: Sequence[Task], device: Device) -> None:
    """Raise :class:`TvmtuneError` if a task uses a type that the device does not support."""
    reported = device.params["extensions"]
    missing = {dtype: x for dtype, x in EXTENSIONS.items() if reported and x not in reported}
    for task in tasks:
        used = {arg.dtype for arg in task.args} & {UNKNOWN}
        if missing:
            used |= {*re.findall(r"\bfloat\d+\b", task.implementations[0].mod.script())}
        for dtype, why in {**missing, UNKNOWN: "OpenCL has no such type"}.items():
            if dtype in used:
                raise TvmtuneError(
                    f"{device.model} cannot compute in {dtype} ({why}), which {task.name} does: "
                    "omit --dtype, or provide the network in float32"
                )
