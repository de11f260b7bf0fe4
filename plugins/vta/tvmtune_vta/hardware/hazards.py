"""Data hazards: whether tokens order all accesses of the engines to shared memory.

Two accesses to one element from different engines, at least one of them a write, must be ordered by
tokens; otherwise the result depends on the engines' speed. The order that tokens enforce is known
exactly (:mod:`tvmtune_vta.hardware.tokens`), so every missing token is found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tvmtune_vta.hardware import bounds, isa, tokens
from tvmtune_vta.hardware.config import Memory
from tvmtune_vta.hardware.isa import Engine, Gemm, Instruction, Loops, Store, Transfer
from tvmtune_vta.hardware.program import Program
from tvmtune_vta.hardware.uop_buffer import UopBuffer

Places = npt.NDArray[np.int64]


@dataclass
class Accesses:
    """The last write and read of each element of a memory, as positions in the engines; 0 for
    none."""

    writer: Engine
    reader: Engine
    written: Places
    read: Places
    by: Places
    """The instruction that wrote last, -1 if none has."""
    reads: Places
    """The instruction that read last."""


@dataclass
class HazardDetector:
    """Follows the instructions in an order that tokens allow."""

    program: Program
    instructions: list[Instruction]
    order: tokens.Order
    memories: dict[Memory, Accesses] = field(init=False)

    def __post_init__(self) -> None:
        config = self.program.config
        self.uops = UopBuffer(self.program)
        self.memories = {
            memory: Accesses(
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
        self.touched: dict[tuple[Loops, str], Places] = {}
        self.dram: dict[int, list[tuple[int, int, int]]] = {
            int(operand): []
            for operand, instruction in zip(self.program.operands, self.instructions, strict=True)
            if isinstance(instruction, Store) and instruction.x_size
        }
        """For each buffer that is stored to: instructions and the byte ranges that they access."""

    def run(self) -> Iterator[tuple[int, str]]:
        """Yield the index of each instruction with a hazard, and the reason."""
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
            self.touched.clear()
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
        dst = self._touched(loops, "dst")
        reset = isinstance(loops, Gemm) and loops.reset
        if not reset:
            for name, memory in bounds.accessed(loops):
                if name != "dst" and not (
                    memory is Memory.ACC and getattr(loops, "use_imm", False)
                ):
                    elements = self._touched(loops, name)
                    if memory is Memory.ACC:
                        reason = self._uninitialized(elements)
                    else:
                        reason = self._reads(index, memory, elements)
                    if reason is not None:
                        return reason
            if (reason := self._uninitialized(dst)) is not None:
                return reason
        self.storable[dst] = not reset
        return self._writes(index, Memory.OUT, dst)

    def _touched(self, loops: Loops, name: str) -> Places:
        """Cached: programs repeat few instructions many times."""
        if (loops, name) not in self.touched:
            self.touched[loops, name] = bounds.touched_elements(
                loops, name, self.uops.of(loops)[name]
            )
        return self.touched[loops, name]

    def _uninitialized(self, elements: Places) -> str | None:
        """The engine that reads accumulators also writes them, so only uninitialized reads are
        hazards."""
        empty = np.flatnonzero(self.memories[Memory.OUT].by[elements] < 0)
        if len(empty):
            return f"it reads accumulator {elements[empty[0]]}, which nothing has written"
        return None

    def _reads(self, index: int, memory: Memory, elements: Places | slice) -> str | None:
        accesses = self.memories[memory]
        written, by = accesses.written[elements], accesses.by[elements]
        accesses.read[elements] = self.order.place[index]
        accesses.reads[elements] = index
        numbers = np.arange(len(accesses.by))[elements]
        empty, late = int(np.argmin(by)), int(np.argmax(written))
        if by[empty] < 0:
            return f"it reads element {numbers[empty]} of {memory.name}, which nothing has written"
        if written[late] > self._finished(index, accesses.writer):
            return (
                f"it may read element {numbers[late]} of {memory.name} before "
                f"{self._name(int(by[late]))} has written it: a token is missing"
            )
        return None

    def _writes(self, index: int, memory: Memory, elements: Places | slice) -> str | None:
        accesses = self.memories[memory]
        late = int(np.argmax(accesses.read[elements]))
        reason = None
        if accesses.read[elements][late] > self._finished(index, accesses.reader):
            element = np.arange(len(accesses.by))[elements][late]
            reason = (
                f"it may overwrite element {element} of {memory.name} before "
                f"{self._name(int(accesses.reads[element]))} has read it: a token is missing"
            )
        accesses.written[elements] = self.order.place[index]
        accesses.by[elements] = index
        return reason

    def _dram(self, index: int, transfer: Transfer, operand: int) -> str | None:
        """Loads of data that the same program stores."""
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
                and self.order.place[other] > self._finished(index, earlier.engine)
            ):
                reason = (
                    f"{self._name(other)} uses the same part of "
                    f"'{self.program.operand_name(operand)}', and no token orders them"
                )
        self.dram[operand].append((index, low, high))
        return reason

    def _finished(self, index: int, engine: Engine) -> int:
        """How many instructions of ``engine`` have certainly finished when ``index`` starts."""
        return int(self.order.before[index, engine])

    def _name(self, index: int) -> str:
        return f"instruction {index} ({isa.describe(self.instructions[index])})"


def hazards(program: Program, instructions: list[Instruction]) -> Iterator[tuple[int, str]]:
    """Hazards of a program whose tokens are valid."""
    yield from HazardDetector(program, instructions, tokens.order(instructions)).run()
