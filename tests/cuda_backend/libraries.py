"""Draw schedules for GPUs, and look into what is built of them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import tvm

from tvmtune.tuning.points import Points
from tvmtune.types import Implementation

EM_CUDA = 190


def code_for_gpus(path: Path) -> list[bytes]:
    """The programs for GPUs in a library; none of their sources is left there."""
    data = path.read_bytes()
    assert b"__global__" not in data
    starts = []
    at = data.find(b"\x7fELF", 1)
    while at >= 0:
        if int.from_bytes(data[at + 18 : at + 20], "little") == EM_CUDA:
            starts.append(at)
        at = data.find(b"\x7fELF", at + 1)
    return [data[start:] for start in starts]


def sampled(implementation: Implementation, target: Any, count: int) -> list[tvm.IRModule]:
    """Modules by schedules that a search would draw."""
    points = Points(implementation, target, seed=1, threads=1)
    rng = random.Random(1)
    found: list[tvm.IRModule] = []
    for seed in range(1, 100):
        drawn = points.realise(points.draw(rng), seed)
        if drawn is not None:
            found.append(drawn[0].mod)
        if len(found) == count:
            break
    return found
