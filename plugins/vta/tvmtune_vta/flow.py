"""What the on-chip memories hold when an instruction reads them, and whether tokens enforce it.

Two accesses to one element from different engines, of which one writes, must be ordered by tokens;
otherwise the result depends on how quick the engines are. The order that tokens enforce is known
exactly (:mod:`tvmtune_vta.tokens`), so no missing token escapes, in any order of execution.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tvmtune_vta import bounds, isa, tokens
from tvmtune_vta.config import Memory
from tvmtune_vta.isa import Engine, Gemm, Instruction, Loops, Store, Transfer
from tvmtune_vta.layout import Columns
from tvmtune_vta.program import Program

Places = npt.NDArray[np.int64]


class UopBuffer:
    """The buffer of uops, as far as loads have filled it."""

    def __init__(self, program: Program) -> None:
        self.columns = isa.unpack_uops(program.uops, program.config)
        self.held = np.full(program.config.depth(Memory.UOP), -1, np.int64)
        """Which of the program's uops each place holds; -1 where none has been loaded."""

    def load(self, transfer: Transfer) -> None:
        """Fill places as a LOAD of one row does."""
        first, end = bounds.in_dram(transfer)
        self.held[bounds.on_chip(transfer)] = np.arange(first, end)

    def missing(self, loops: Loops) -> int | None:
        """The first place of a range that nothing has been loaded to."""
        empty = np.flatnonzero(self.held[loops.uop_bgn : loops.uop_end] < 0)
        return loops.uop_bgn + int(empty[0]) if len(empty) else None

    def of(self, loops: Loops) -> Columns:
        """The uops of an instruction, of which none may be missing."""
        held = self.held[loops.uop_bgn : loops.uop_end]
        return {name: column[held] for name, column in self.columns.items()}


@dataclass
class Traffic:
    """Who wrote and who read each element of a memory last: places in the engines, 0 for nobody."""

    writer: Engine
    reader: Engine
    written: Places
    read: Places
    by: Places
    """The number of the instruction that wrote last, -1 where none has."""
    reads: Places
    """The number of the instruction that read last."""


@dataclass
class Flow:
    """Follows the instructions in an order that tokens allow."""

    program: Program
    instructions: list[Instruction]
    order: tokens.Order
    memories: dict[Memory, Traffic] = field(init=False)

    def __post_init__(self) -> None:
        config = self.program.config
        self.uops = UopBuffer(self.program)
        self.memories = {
            memory: Traffic(
                writer, reader, *(np.full(config.depth(memory), n) for n in (0, 0, -1, -1))
            )
            for memory, writer, reader in (
                (Memory.INP, Engine.LOAD, Engine.COMPUTE),
                (Memory.WGT, Engine.LOAD, Engine.COMPUTE),
                (Memory.OUT, Engine.COMPUTE, Engine.STORE),
            )
        }
        self.storable = np.zeros(config.depth(Memory.ACC), bool)
        """Accumulators whose last write also went to the buffer that STORE reads."""
        self.reached: dict[tuple[Loops, str], Places] = {}
        self.dram: dict[int, list[tuple[int, int, int]]] = {
            int(operand): []
            for operand, instruction in zip(self.program.operands, self.instructions, strict=True)
            if isinstance(instruction, Store) and instruction.x_size
        }
        """For each buffer that is stored to: instructions, and the bytes that they cover."""

    def run(self) -> Iterator[tuple[int, str]]:
        """Yield a reason for each instruction that reads, or overwrites, what it should not."""
        operands = self.program.operands.tolist()
        for index in self.order.sequence:
            instruction = self.instructions[index]
            if isinstance(instruction, Loops):
                reason = self._loops(index, instruction)
            elif isinstance(instruction, Transfer) and instruction.x_size:
                reason = self._transfer(index, instruction)
                if reason is None and instruction.memory is not Memory.UOP:
                    reason = self._dram(index, instruction, operands[index])
            else:
                reason = None
            if reason is not None:
                yield index, reason

    def _transfer(self, index: int, transfer: Transfer) -> str | None:
        covered = bounds.on_chip(transfer)
        if transfer.memory is Memory.UOP:
            self.uops.load(transfer)
            self.reached.clear()
            return None
        if isinstance(transfer, Store):
            reason = self._reads(index, Memory.OUT, covered)
            stale = np.flatnonzero(~self.storable[covered])
            if reason is None and len(stale):
                element = covered.start + int(stale[0])
                by = self.memories[Memory.OUT].by[element]
                reason = (
                    f"it reads element {element}, last written by instruction {by} "
                    f"({isa.describe(self.instructions[by])}): hardware writes the buffer that STORE "
                    "reads by GEMM without reset and by ALU only"
                )
            return reason
        if transfer.memory is Memory.ACC:
            self.storable[covered] = False
            return self._writes(index, Memory.OUT, covered)
        return self._writes(index, transfer.memory, covered)

    def _loops(self, index: int, loops: Loops) -> str | None:
        dst = self._reach(loops, "dst")
        reset = isinstance(loops, Gemm) and loops.reset
        if not reset:
            for name, memory in bounds.used(loops):
                if name != "dst" and not (
                    memory is Memory.ACC and getattr(loops, "use_imm", False)
                ):
                    elements = self._reach(loops, name)
                    if memory is Memory.ACC:
                        reason = self._unset(elements)
                    else:
                        reason = self._reads(index, memory, elements)
                    if reason is not None:
                        return reason
            if (reason := self._unset(dst)) is not None:
                return reason
        self.storable[dst] = not reset
        return self._writes(index, Memory.OUT, dst)

    def _reach(self, loops: Loops, name: str) -> Places:
        """Programs repeat few instructions many times."""
        if (loops, name) not in self.reached:
            self.reached[loops, name] = bounds.reach(loops, name, self.uops.of(loops)[name])
        return self.reached[loops, name]

    def _unset(self, elements: Places) -> str | None:
        """Accumulators are written by the engine that reads them: only nothing can be wrong."""
        empty = np.flatnonzero(self.memories[Memory.OUT].by[elements] < 0)
        if len(empty):
            return f"it reads accumulator {elements[empty[0]]}, which nothing has written"
        return None

    def _reads(self, index: int, memory: Memory, elements: Places | slice) -> str | None:
        traffic = self.memories[memory]
        written, by = traffic.written[elements], traffic.by[elements]
        traffic.read[elements] = self.order.place[index]
        traffic.reads[elements] = index
        numbers = np.arange(len(traffic.by))[elements]
        empty, late = int(np.argmin(by)), int(np.argmax(written))
        if by[empty] < 0:
            return f"it reads element {numbers[empty]} of {memory.name}, which nothing has written"
        if written[late] > self._sure(index, traffic.writer):
            return (
                f"it may read element {numbers[late]} of {memory.name} before "
                f"{self._name(int(by[late]))} has written it: a token is missing"
            )
        return None

    def _writes(self, index: int, memory: Memory, elements: Places | slice) -> str | None:
        traffic = self.memories[memory]
        late = int(np.argmax(traffic.read[elements]))
        reason = None
        if traffic.read[elements][late] > self._sure(index, traffic.reader):
            element = np.arange(len(traffic.by))[elements][late]
            reason = (
                f"it may overwrite element {element} of {memory.name} before "
                f"{self._name(int(traffic.reads[element]))} has read it: a token is missing"
            )
        traffic.written[elements] = self.order.place[index]
        traffic.by[elements] = index
        return reason

    def _dram(self, index: int, transfer: Transfer, operand: int) -> str | None:
        """Loads of what the same program stores."""
        if operand not in self.dram:
            return None
        size = self.program.config.element_bytes(transfer.memory)
        low, high = (size * n for n in bounds.in_dram(transfer))
        reason = None
        for other, first, end in self.dram[operand]:
            earlier = self.instructions[other]
            if (
                isinstance(earlier, Store) != isinstance(transfer, Store)
                and low < end
                and first < high
                and self.order.place[other] > self._sure(index, earlier.engine)
            ):
                reason = (
                    f"{self._name(other)} uses the same part of "
                    f"'{self.program.operand_name(operand)}', and nothing says which is first"
                )
        self.dram[operand].append((index, low, high))
        return reason

    def _sure(self, index: int, engine: Engine) -> int:
        """How many instructions of ``engine`` have surely ended when ``index`` begins."""
        return int(self.order.before[index, engine])

    def _name(self, index: int) -> str:
        return f"instruction {index} ({isa.describe(self.instructions[index])})"


def problems(program: Program, instructions: list[Instruction]) -> Iterator[tuple[int, str]]:
    """What is wrong with the data of a program whose tokens are sound."""
    yield from Flow(program, instructions, tokens.order(instructions)).run()
