"""Tuning tasks: the distinct packed convolutions of a network."""

from __future__ import annotations

from dataclasses import astuple

from tvmtune.passes.workload_keys import anchor_key, workload_key
from tvmtune.types import DIRECT, Implementation, Task, TensorSpec
from tvmtune_vta.codegen.workload import Convolution
from tvmtune_vta.hardware.config import Config
from tvmtune_vta.tuning import conv2d_packed
from tvmtune_vta.tuning.space import KnobSpace

_TUTORIAL_FIELDS = 11
"""Number of fields by which the tutorial names a layer; groups follow if there are several."""


def task_name(conv: Convolution) -> str:
    """The tutorial's name: (batch, height, width, in_filter, out_filter, hkernel, wkernel, hpad,
    wpad, hstride, wstride); for a transposed convolution with its own padding and strides."""
    fields = list(astuple(conv)[:_TUTORIAL_FIELDS])
    operator = conv2d_packed.BLOCK
    if conv.up_h * conv.up_w > 1:
        operator = "conv2d_transpose_packed"
        fields[7:] = [conv.kernel_h - 1 - conv.pad_h, conv.kernel_w - 1 - conv.pad_w]
        fields += [conv.up_h, conv.up_w]
    fields += [conv.groups] if conv.groups > 1 else []
    ends = f",end={conv.end_h}x{conv.end_w}" if conv.end_h or conv.end_w else ""
    return f"{operator}({','.join(map(str, fields))}{ends})"


def extract(packed: dict[str, Convolution], config: Config) -> list[Task]:
    """A task for each distinct convolution, in program order."""
    tasks: dict[Convolution, Task] = {}
    for site, conv in enumerate(packed.values()):
        if conv in tasks:
            tasks[conv].weight += 1
            tasks[conv].sites += (site,)
            continue
        mod = conv2d_packed.module(conv, config)
        key = workload_key(mod)
        space = KnobSpace(conv, conv2d_packed.EPILOGUE, config)
        tasks[conv] = Task(
            index=len(tasks),
            name=task_name(conv),
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
