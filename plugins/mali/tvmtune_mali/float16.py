"""Half precision, which a device may lack."""

from __future__ import annotations

from collections.abc import Sequence

from tvmtune.errors import TvmtuneError
from tvmtune.types import Device, Task

EXTENSION = "cl_khr_fp16"


def check(tasks: Sequence[Task], device: Device) -> None:
    """Raise :class:`TvmtuneError` if a task computes in float16 and the device is known to lack it."""
    told = device.params["extensions"]
    if not told or EXTENSION in told:
        return
    for task in tasks:
        if "float16" in task.implementations[0].mod.script():
            raise TvmtuneError(
                f"{device.model} cannot compute in float16 ({EXTENSION}), which {task.name} does: "
                "leave --dtype float16 away, or give the network in float32."
            )
