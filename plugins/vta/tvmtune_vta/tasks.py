"""The distinct packed convolutions of a network as tasks of the core."""

from __future__ import annotations

from dataclasses import astuple

from tvmtune.graph.tasks import DIRECT
from tvmtune.records.identity import anchor_key, workload_key
from tvmtune.types import Implementation, Task, TensorSpec
from tvmtune_vta import compute
from tvmtune_vta.config import Config
from tvmtune_vta.space import KnobSpace
from tvmtune_vta.workload import Convolution

_TUTORIALS = 11
"""So many of a convolution's numbers the tutorial names a layer by; groups follow where there are
several."""


def name(conv: Convolution) -> str:
    """As the tutorial has it: (batch, height, width, in_filter, out_filter, hkernel, wkernel, hpad,
    wpad, hstride, wstride); paddings and strides of a transposed convolution are those that it is
    known by."""
    told = list(astuple(conv)[:_TUTORIALS])
    operator = compute.BLOCK
    if conv.up_h * conv.up_w > 1:
        operator = "conv2d_transpose_packed"
        told[7:] = [conv.kernel_h - 1 - conv.pad_h, conv.kernel_w - 1 - conv.pad_w]
        told += [conv.up_h, conv.up_w]
    told += [conv.groups] if conv.groups > 1 else []
    ends = f",end={conv.end_h}x{conv.end_w}" if conv.end_h or conv.end_w else ""
    return f"{operator}({','.join(map(str, told))}{ends})"


def extract(packed: dict[str, Convolution], config: Config) -> list[Task]:
    """A task for each distinct convolution, in program order."""
    tasks: dict[Convolution, Task] = {}
    for site, conv in enumerate(packed.values()):
        if conv in tasks:
            tasks[conv].weight += 1
            tasks[conv].sites += (site,)
            continue
        mod = compute.module(conv, config)
        key = workload_key(mod)
        space = KnobSpace(conv, compute.EPILOGUE, config)
        tasks[conv] = Task(
            index=len(tasks),
            name=name(conv),
            key=key,
            anchor_key=anchor_key(mod),
            weight=1,
            flop=2.0 * conv.macs,
            args=tuple(
                TensorSpec(str(p.name), tuple(int(d) for d in p.shape), str(p.dtype))
                for p in mod["main"].params
            ),
            implementations=[Implementation(DIRECT, key, mod, space)],
            sites=(site,),
        )
    return list(tasks.values())
