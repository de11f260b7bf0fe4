"""Several programs as one: layers run one after another without the host in between.

Between two of them all engines meet: the stores of the one are done before the loads of the next begin,
so that what lies in DRAM and on chip may be used again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tvmtune_vta import isa
from tvmtune_vta.config import Config, Memory
from tvmtune_vta.convolution import Step
from tvmtune_vta.isa import Engine, Finish, Load
from tvmtune_vta.program import NO_OPERAND, Buffer, Program


@dataclass(frozen=True)
class Link:
    """A program, and which buffer of the whole each of its own is."""

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
    """One program that runs ``links`` in order on ``buffers``, of which ``contents`` holds some."""
    steps: list[Step] = []
    uops: list[npt.NDArray[np.uint32]] = []
    known = 0
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
                instruction = replace(instruction, dram_base=instruction.dram_base + known)
            steps.append((instruction, operand if operand < 0 else link.buffers[operand]))
        uops.append(link.program.uops)
        known += len(link.program.uops)
    steps.append((Finish(), NO_OPERAND))
    return Program.build(
        config, steps, np.concatenate(uops), buffers, contents=dict(contents), name=name
    )
