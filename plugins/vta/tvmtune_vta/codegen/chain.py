"""Concatenation of programs: layers run one after another without the host in between.

At the boundary of two programs all engines synchronize: the stores of one are done before the loads
of the next start, so that DRAM and on-chip memory can be reused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tvmtune_vta.hardware import isa
from tvmtune_vta.hardware.config import Config, Memory
from tvmtune_vta.hardware.isa import Engine, Finish, Load
from tvmtune_vta.hardware.program import NO_OPERAND, Buffer, Program, Step


@dataclass(frozen=True)
class Link:
    """A program, and the index in the concatenated program of each of its buffers."""

    program: Program
    buffers: Mapping[int, int]


def chain(
    config: Config,
    links: Sequence[Link],
    buffers: Sequence[Buffer],
    contents: Mapping[int, npt.NDArray[Any]],
    *,
    name: str = "",
) -> Program:
    """One program that runs ``links`` in order on ``buffers``, some of which have ``contents``."""
    steps: list[Step] = []
    uops: list[npt.NDArray[np.uint32]] = []
    uop_count = 0
    for number, link in enumerate(links):
        if number:
            steps.append((isa.noop(Engine.COMPUTE, push_prev=True), NO_OPERAND))
            steps.append((isa.noop(Engine.LOAD, pop_next=True), NO_OPERAND))
        for instruction, operand in zip(
            link.program.decode(), link.program.operands.tolist(), strict=True
        ):
            if isinstance(instruction, Finish):
                continue
            if isinstance(instruction, Load) and instruction.memory is Memory.UOP:
                instruction = replace(instruction, dram_base=instruction.dram_base + uop_count)
            steps.append((instruction, operand if operand < 0 else link.buffers[operand]))
        uops.append(link.program.uops)
        uop_count += len(link.program.uops)
    steps.append((Finish(), NO_OPERAND))
    return Program.build(
        config, steps, np.concatenate(uops), buffers, contents=dict(contents), name=name
    )
