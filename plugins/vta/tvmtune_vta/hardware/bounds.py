"""The elements that an instruction accesses on chip and in DRAM, and bounds checks on them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tvmtune_vta.hardware.bitfields import Columns
from tvmtune_vta.hardware.config import Config, Memory
from tvmtune_vta.hardware.isa import Alu, Gemm, Load, Loops, Store, Transfer
from tvmtune_vta.hardware.program import NO_OPERAND, UOPS, Program

Indices = npt.NDArray[np.int64]


def rows(transfer: Transfer) -> tuple[int, int]:
    """Rows and row length that a transfer covers on chip, pads included."""
    return (
        transfer.y_pad_0 + transfer.y_size + transfer.y_pad_1,
        transfer.x_pad_0 + transfer.x_size + transfer.x_pad_1,
    )


def on_chip(transfer: Transfer) -> slice:
    """The on-chip elements that a transfer covers."""
    height, width = rows(transfer)
    return slice(transfer.sram_base, transfer.sram_base + height * width)


def in_dram(transfer: Transfer) -> tuple[int, int]:
    """The first DRAM element that a transfer covers, and the one after the last."""
    last = transfer.dram_base + (transfer.y_size - 1) * transfer.x_stride + transfer.x_size
    return transfer.dram_base, last if transfer.y_size else transfer.dram_base


def transfer_problem(transfer: Transfer, operand: int, program: Program) -> str | None:
    """Why a non-empty transfer (x_size above 0) is invalid, or None."""
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
        return "it has no operand for its dram_base"
    if (operand == UOPS) != (memory is Memory.UOP):
        return f"its operand is {program.operand_name(operand)}, not one for {memory.name}"
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
    """Why instructions with these uops (``uop_bgn`` to ``uop_end``) exceed the memories, or
    None."""
    for index, memory in accessed(loops):
        out, inner = factors(loops, index)
        most = int(uops[index].max()) + (loops.iter_out - 1) * out + (loops.iter_in - 1) * inner
        if most >= config.depth(memory):
            return (
                f"its {index} index reaches {most}, and {memory.name} has {config.depth(memory)} "
                "elements"
            )
    return None


def accessed(loops: Loops) -> list[tuple[str, Memory]]:
    """The indices that an instruction computes, and the memories they address. An ALU instruction's
    source is included even with ``use_imm``: upstream's simulator looks it up all the same."""
    if isinstance(loops, Alu):
        return [("dst", Memory.ACC), ("src", Memory.ACC)]
    if isinstance(loops, Gemm) and not loops.reset:
        return [("dst", Memory.ACC), ("src", Memory.INP), ("wgt", Memory.WGT)]
    return [("dst", Memory.ACC)]


def factors(loops: Loops, index: str) -> tuple[int, int]:
    """Increments of ``index`` per outer and per inner iteration."""
    return (
        int(getattr(loops, f"{index}_factor_out", 0)),
        int(getattr(loops, f"{index}_factor_in", 0)),
    )


def touched_elements(loops: Loops, index: str, uops: Indices) -> Indices:
    """The distinct elements that an index addresses, sorted. The loops must be within bounds."""
    out, inner = factors(loops, index)
    outer = np.arange(loops.iter_out if out else 1) * out
    offsets = _unique(outer[:, None] + np.arange(loops.iter_in if inner else 1) * inner)
    return _unique(_unique(uops)[:, None] + offsets)


def _unique(indices: Indices) -> Indices:
    """The distinct indices, sorted; they are small, so marking is faster than sorting."""
    marks = np.zeros(int(indices.max()) + 1, bool)
    marks[indices] = True
    return np.flatnonzero(marks)


def indices_at(loops: Loops, index: str, uops: Indices, steps: Indices) -> Indices:
    """(steps, uops): the index in these iterations, numbered across both loops."""
    out, inner = factors(loops, index)
    offsets = steps // loops.iter_in * out + steps % loops.iter_in * inner
    return offsets[:, None] + uops
