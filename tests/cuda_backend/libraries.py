"""Draw schedules for GPUs, and look into what is built of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tvm

from tvmtune.graph import spaces

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


def sampled(implementation: Any, target: Any, count: int) -> list[tvm.IRModule]:
    """Modules by schedules that the space's rules draw; many draws do not fit a GPU."""
    found: list[tvm.IRModule] = []
    for seed in range(1, 100):
        context = spaces.tune_context(
            implementation.mod, target, implementation.space.generator(), seed=seed
        )
        postprocs = list(context.space_generator.postprocs)
        for design in context.generate_design_space():
            drawn = spaces.replay(implementation.mod, design.trace, postprocs, seed)
            if drawn is not None:
                found.append(drawn.mod)
            if len(found) == count:
                return found
    return found
