"""Kinds of numbers that a device may lack."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tvmtune.errors import TvmtuneError
from tvmtune.types import Device, Task

EXTENSIONS = {"float16": "cl_khr_fp16", "float64": "cl_khr_fp64"}
UNKNOWN = "bfloat16"
"""OpenCL C has no such type, and what TVM 0.27 writes in its place no driver builds."""


def check(tasks: Sequence[Task], device: Device) -> None:
    """Raise :class:`TvmtuneError` if a task computes in what the device is known to lack."""
    told = device.params["extensions"]
    lacking = {dtype: name for dtype, name in EXTENSIONS.items() if told and name not in told}
    for task in tasks:
        found = {arg.dtype for arg in task.args} & {UNKNOWN}
        if lacking:
            found |= {*re.findall(r"\bfloat\d+\b", task.implementations[0].mod.script())}
        for dtype, why in {**lacking, UNKNOWN: "OpenCL has no such type"}.items():
            if dtype in found:
                raise TvmtuneError(
                    f"{device.model} cannot compute in {dtype} ({why}), which {task.name} does: "
                    "leave --dtype away, or give the network in float32."
                )
