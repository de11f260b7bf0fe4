"""What an instruction touches, on chip and in DRAM, and whether that exists."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tvmtune_vta.config import Config, Memory
from tvmtune_vta.isa import Alu, Gemm, Load, Loops, Store, Transfer
from tvmtune_vta.layout import Columns
from tvmtune_vta.program import NO_OPERAND, UOPS, Program

Indices = npt.NDArray[np.int64]


def rows(transfer: Transfer) -> tuple[int, int]:
    """Rows, and elements of a row, that a transfer covers on chip, pads included."""
    return (
        transfer.y_pad_0 + transfer.y_size + transfer.y_pad_1,
        transfer.x_pad_0 + transfer.x_size + transfer.x_pad_1,
    )


def on_chip(transfer: Transfer) -> slice:
    """The elements of its memory that a transfer covers."""
    height, width = rows(transfer)
    return slice(transfer.sram_base, transfer.sram_base + height * width)


def in_dram(transfer: Transfer) -> tuple[int, int]:
    """The first element that a transfer covers in DRAM, and the one after the last."""
    last = transfer.dram_base + (transfer.y_size - 1) * transfer.x_stride + transfer.x_size
    return transfer.dram_base, last if transfer.y_size else transfer.dram_base


def transfer_problem(transfer: Transfer, operand: int, program: Program) -> str | None:
    """Why a transfer of something (x_size above 0) cannot be made, if so."""
    config, memory = program.config, transfer.memory
    if isinstance(transfer, Store) and memory is not Memory.OUT:
        return f"STORE reads OUT, not {memory.name}"
    if isinstance(transfer, Load) and memory is Memory.OUT:
        return "OUT cannot be loaded"
    if isinstance(transfer, Store) and rows(transfer) != (transfer.y_size, transfer.x_size):
        return "STORE has no padding"
    depth, covered = config.depth(memory), on_chip(transfer)
    if covered.stop > depth:
        return (
            f"it covers elements {covered.start} to {covered.stop - 1} of {memory.name}, "
            f"which has {depth}"
        )
    if operand == NO_OPERAND:
        return "it has no operand that its dram_base counts from"
    if (operand == UOPS) != (memory is Memory.UOP):
        return f"its operand is {program.operand_name(operand)}, which {memory.name} does not take"
    if operand == UOPS:
        size = len(program.uops)
    else:
        size = program.buffers[operand].nbytes // config.element_bytes(memory)
    first, end = in_dram(transfer)
    if end > size:
        return (
            f"it covers elements {first} to {end - 1} of '{program.operand_name(operand)}' in DRAM, "
            f"which has {size}"
        )
    return None


def loops_problem(loops: Loops, uops: Columns, config: Config) -> str | None:
    """Why these uops (those of ``uop_bgn`` to ``uop_end``) leave the memories, if they do."""
    for index, memory in used(loops):
        out, inner = factors(loops, index)
        most = int(uops[index].max()) + (loops.iter_out - 1) * out + (loops.iter_in - 1) * inner
        if most >= config.depth(memory):
            return (
                f"its {index} index reaches {most}, and {memory.name} has {config.depth(memory)} "
                "elements"
            )
    return None


def used(loops: Loops) -> list[tuple[str, Memory]]:
    """The indices that an instruction computes, and what they address. The source of an ALU
    instruction is among them with ``use_imm`` too: upstream's simulator looks it up all the same."""
    if isinstance(loops, Alu):
        return [("dst", Memory.ACC), ("src", Memory.ACC)]
    if isinstance(loops, Gemm) and not loops.reset:
        return [("dst", Memory.ACC), ("src", Memory.INP), ("wgt", Memory.WGT)]
    return [("dst", Memory.ACC)]


def factors(loops: Loops, index: str) -> tuple[int, int]:
    """What ``index`` grows by with each outer and each inner iteration."""
    return (
        int(getattr(loops, f"{index}_factor_out", 0)),
        int(getattr(loops, f"{index}_factor_in", 0)),
    )


def reach(loops: Loops, index: str, uops: Indices) -> Indices:
    """All elements that an index takes, each once, sorted. The loops must be within bounds."""
    out, inner = factors(loops, index)
    outer = np.arange(loops.iter_out if out else 1) * out
    offsets = _each(outer[:, None] + np.arange(loops.iter_in if inner else 1) * inner)
    return _each(_each(uops)[:, None] + offsets)


def _each(indices: Indices) -> Indices:
    """Each index once; they are small, so that marking is quicker than sorting."""
    marks = np.zeros(int(indices.max()) + 1, bool)
    marks[indices] = True
    return np.flatnonzero(marks)


def at(loops: Loops, index: str, uops: Indices, steps: Indices) -> Indices:
    """(steps, uops): the index in these iterations, counted through both loops."""
    out, inner = factors(loops, index)
    offsets = steps // loops.iter_in * out + steps % loops.iter_in * inner
    return offsets[:, None] + uops
