"""The fast simulator: bit-identical to :mod:`tvmtune_vta.simulator.reference`, for whole networks.

Everything that does not depend on data happens once. A valid program's result does not depend on
the order in which its engines run, so one order is enough; its instructions become rows of a table,
with uops already resolved. A run is then one call of compiled code that interprets the table
(:mod:`tvmtune_vta.simulator.fast_kernels`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tvmtune_vta.hardware import bounds, isa, rules, tokens
from tvmtune_vta.hardware.config import Config, Memory
from tvmtune_vta.hardware.isa import Alu, AluOp, Gemm, Load, Loops, Store, Transfer
from tvmtune_vta.hardware.program import Program
from tvmtune_vta.hardware.uop_buffer import UopBuffer
from tvmtune_vta.simulator import fast_kernels, reference
from tvmtune_vta.simulator.fast_kernels import COLUMNS, Kind

_LOADS = {Memory.INP: Kind.INP, Memory.WGT: Kind.WGT, Memory.ACC: Kind.ACC}
_OPERATIONS = {
    AluOp.MIN: Kind.MIN,
    AluOp.MAX: Kind.MAX,
    AluOp.ADD: Kind.ADD,
    AluOp.SHR: Kind.SHIFT_RIGHT,
}


class FastSimulator:
    """A program, prepared for many runs from any number of threads.

    Raises :class:`TvmtuneError` with the first rule of :mod:`tvmtune_vta.hardware.rules` that the
    program breaks. ``checked`` skips this check for programs known to be valid: an invalid one may
    crash the process.
    """

    def __init__(self, program: Program, *, checked: bool = False) -> None:
        if not checked:
            rules.check(program)
        self.program = program
        built = _TableBuilder(program)
        self._rows = built.rows
        self._written = built.written
        self._code = fast_kernels.compiled(program.config.batch, program.config.block)
        self._tables = [_tensor(array) for array in built.tables()]

    def run(self, memory: Mapping[int, npt.NDArray[Any]]) -> dict[int, npt.NDArray[Any]]:
        """Each buffer after a run on ``memory``, which maps buffer indices to arrays of their
        dtypes and shapes; buffers that are not given hold the program's contents, or zeros.

        Input arrays are unchanged. Buffers that no instruction writes are returned uncopied. Raises
        :class:`TvmtuneError` for arrays that do not match, and
        :class:`tvmtune_vta.simulator.reference.Fault` for a shift by an accumulator outside 0 to
        15.
        """
        before = reference.initial_memory(self.program, memory)
        after = {
            number: np.array(array, order="C") if number in self._written else array
            for number, array in before.items()
        }
        contiguous = [np.ascontiguousarray(array) for array in after.values()]
        addresses = np.array([array.ctypes.data for array in contiguous] or [0], np.int64)
        status = _tensor(np.zeros(2, np.int32))
        on_chip = _ON_CHIP.of(self.program.config)
        self._code(*self._tables, _tensor(addresses), *on_chip, status)
        row, amount = status.numpy().tolist()
        if row:
            index = self._rows[row - 1]
            text = isa.describe(self.program.decode()[index])
            raise reference.Fault(
                f"instruction {index} ({text}): it shifts by {amount} from an accumulator: "
                "must be 0 to 15.",
                index,
            )
        return after

    def close(self) -> None:
        """Nothing to release."""


class _TableBuilder:
    """Builds the table of a valid program."""

    def __init__(self, program: Program) -> None:
        self.program, self.config = program, program.config
        self.vector = self.config.batch * self.config.block
        self.uops = UopBuffer(program)
        self.rows: list[int] = []
        """The instruction of each row."""
        self.written: set[int] = set()
        """The operands that instructions store to."""
        self.table: list[list[int]] = []
        self.groups: list[list[int]] = []
        self.steps: list[npt.NDArray[np.int64]] = []
        self.count = 0
        self.ranges: dict[tuple[bool, int, int], tuple[int, int]] = {}
        """Start and end of the uops of a range, or of their groups."""
        instructions, operands = program.decode(), program.operands.tolist()
        for index in tokens.order(instructions).sequence:
            instruction = instructions[index]
            if isinstance(instruction, Loops):
                row = self.loops(instruction)
            elif not isinstance(instruction, Transfer) or instruction.x_size == 0:
                continue
            elif instruction.memory is Memory.UOP:
                self.uops.load(instruction)
                self.ranges.clear()
                continue
            else:
                row = self.transfer(instruction, operands[index])
            self.table.append(row + [0] * (COLUMNS - len(row)))
            self.rows.append(index)

    def tables(self) -> list[npt.NDArray[Any]]:
        """The first arguments of the compiled function."""
        steps = np.concatenate(self.steps) if self.steps else np.zeros((0, 2))
        return [
            np.array(self.table, np.int64).reshape(-1, COLUMNS),
            np.array(self.groups, np.int32).reshape(-1, 3),
            steps.astype(np.int32),
        ]

    def loops(self, loops: Loops) -> list[int]:
        grouped = isinstance(loops, Gemm) and not loops.reset
        key = grouped, loops.uop_bgn, loops.uop_end
        if key not in self.ranges:
            self.ranges[key] = self.add_uops(loops, grouped)
        begin, end = self.ranges[key]
        iterations = [loops.iter_out, loops.iter_in]
        factors = [
            *(loops.dst_factor_out, loops.dst_factor_in),
            *(loops.src_factor_out, loops.src_factor_in),
        ]
        if isinstance(loops, Gemm):
            if loops.reset:
                return [Kind.RESET, begin, end, *iterations, *factors]
            steps = [loops.wgt_factor_out, loops.wgt_factor_in]
            varying = [n if step else 1 for n, step in zip(iterations, steps, strict=True)]
            shared = [1 if step else n for n, step in zip(iterations, steps, strict=True)]
            return [Kind.GEMM, begin, end, *varying, *factors, *steps, *shared]
        assert isinstance(loops, Alu)
        kind, imm = _OPERATIONS[loops.op], loops.imm
        if loops.op is AluOp.SHR and loops.use_imm and imm < 0:
            kind, imm = Kind.SHIFT_LEFT, -imm
        return [kind, begin, end, *iterations, *factors, int(loops.use_imm), imm]

    def add_uops(self, loops: Loops, grouped: bool) -> tuple[int, int]:
        """Append the uops of an instruction. GEMM sums in any order, so uops with the same weight
        are grouped."""
        uops = self.uops.of(loops)
        pairs = np.stack([uops["dst"], uops["src"]], axis=1)
        first = self.count
        self.count += len(pairs)
        if not grouped:
            self.steps.append(pairs)
            return first, self.count
        sequence = np.argsort(uops["wgt"], kind="stable")
        self.steps.append(pairs[sequence])
        tiles, starts = np.unique(uops["wgt"][sequence], return_index=True)
        begin = len(self.groups)
        for tile, start, end in zip(tiles, starts, [*starts[1:], len(pairs)], strict=True):
            self.groups.append([int(tile), first + int(start), first + int(end)])
        return begin, len(self.groups)

    def transfer(self, transfer: Transfer, operand: int) -> list[int]:
        memory, size = transfer.memory, self.config.element_bytes(transfer.memory)
        dram = [operand, transfer.dram_base * size, transfer.x_stride * size, transfer.y_size]
        values = 1 if memory is Memory.WGT else self.vector
        covered, (height, width) = bounds.on_chip(transfer), bounds.rows(transfer)
        start = covered.start + transfer.y_pad_0 * width + transfer.x_pad_0
        padded = height * width if (height, width) != (transfer.y_size, transfer.x_size) else 0
        on_chip = [transfer.x_size, start, width, covered.start, padded]
        if isinstance(transfer, Store):
            self.written.add(operand)
        kind = _LOADS[memory] if isinstance(transfer, Load) else Kind.STORE
        return [kind, *dram, *(n * values for n in on_chip)]


class _OnChipMemories(threading.local):
    """On-chip memories per thread and configuration. Runs may share them: valid programs never read
    what an earlier run has left."""

    def __init__(self) -> None:
        self.memories: dict[tuple[int, ...], list[Any]] = {}

    def of(self, config: Config) -> list[Any]:
        import tvm

        values = tuple(
            config.depth(memory) * int(np.prod(config.element_shape(memory)))
            for memory in (Memory.INP, Memory.WGT, Memory.ACC)
        )
        if values not in self.memories:
            self.memories[values] = [
                tvm.runtime.empty((count,), dtype)
                for count, dtype in zip(values, ("float32", "int8", "uint32"), strict=True)
            ]
        return self.memories[values]


_ON_CHIP = _OnChipMemories()


def _tensor(array: npt.NDArray[Any]) -> Any:
    """A copy as a TVM tensor."""
    import tvm

    return tvm.runtime.tensor(array)
