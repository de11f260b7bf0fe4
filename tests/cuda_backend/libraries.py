"""GPU libraries: records to build them from, and the device code in them."""

from __future__ import annotations

from pathlib import Path

import tvm

from tvmtune import api
from tvmtune.spaces import traces
from tvmtune.types import Implementation, Task, Trial

EM_CUDA = 190


def device_code(path: Path) -> list[bytes]:
    """The device programs in a library, which must not contain their source."""
    data = path.read_bytes()
    assert b"__global__" not in data
    starts = []
    at = data.find(b"\x7fELF", 1)
    while at >= 0:
        if int.from_bytes(data[at + 18 : at + 20], "little") == EM_CUDA:
            starts.append(at)
        at = data.find(b"\x7fELF", at + 1)
    return [data[start:] for start in starts]


def record(plan: api.Plan, task: Task, each: Implementation) -> Trial:
    """A record of the implementation's default schedule."""
    target = tvm.target.Target(plan.device.target)
    return Trial(
        task=task.key,
        implementation=each.name,
        workload=each.workload_key,
        candidate="made by hand",
        trace=traces.to_json(each.space.default(each.mod, target)),
        seconds=[1e-3],
        device=plan.device.identity(),
    )
