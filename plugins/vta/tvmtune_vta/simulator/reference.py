"""The reference simulator: runs programs in plain NumPy, in any order that tokens allow.

It is written to be read and to find faults, not for speed: :mod:`tvmtune_vta.simulator.fast` is for
whole networks. No existing simulator is used, because upstream's C++ one needs a build per
configuration and knows one execution order. Semantics follow the VTA hardware repository's
``src/sim/sim_driver.cc`` except in three points: memories hold noise before they are loaded,
undefined behavior is a fault, and STORE reads the accumulators only (so does upstream's simulator;
:mod:`tvmtune_vta.hardware.rules` models the hardware's output buffer).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tvmtune.errors import TvmtuneError, UsageError
from tvmtune_vta.hardware import bounds, isa, tokens
from tvmtune_vta.hardware.config import Memory
from tvmtune_vta.hardware.isa import Alu, Engine, Finish, Gemm, Loops, Store, Transfer
from tvmtune_vta.hardware.program import Program
from tvmtune_vta.hardware.tokens import TokenQueue
from tvmtune_vta.hardware.uop_buffer import UopBuffer
from tvmtune_vta.simulator import numpy_kernels

ORDERS = ("greedy", "eager-loads", "lazy-loads")
_PREFERENCE = {
    "eager-loads": (Engine.LOAD, Engine.COMPUTE, Engine.STORE),
    "lazy-loads": (Engine.STORE, Engine.COMPUTE, Engine.LOAD),
}
STEPS = 1 << 16
"""Limit of steps (uops times iterations) per instruction of a program."""
_MIN_INSTRUCTIONS = 16
_NOISE_BYTE = 0x5A

Bytes = npt.NDArray[np.uint8]


class Fault(TvmtuneError):
    """A program did something undefined, or did not terminate. ``index`` is the instruction, if
    known."""

    def __init__(self, message: str, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index


@dataclass
class Result:
    """The result of a run."""

    memory: dict[int, npt.NDArray[Any]]
    """Each buffer after the run; the input arrays are unchanged."""
    sequence: list[int]
    """The instructions in execution order."""
    steps: dict[str, int] = field(default_factory=dict)
    """Steps of ``gemm``, ``reset`` and ``alu``."""
    traffic: dict[str, int] = field(default_factory=dict)
    """Bytes between DRAM and each memory, by its name in lower case."""


def run(
    program: Program,
    memory: Mapping[int, npt.NDArray[Any]],
    order: str | int = "greedy",
    *,
    limit: int | None = None,
) -> Result:
    """Run a program on ``memory``, which maps buffer indices to arrays of their dtypes and shapes.

    Buffers that are not given hold the program's ``contents``, or zeros (outputs and scratch only).
    ``order`` decides which engine runs first if several can: "greedy", each as far as it can in
    turn; "eager-loads", loads as early and stores as late as tokens allow; "lazy-loads", the
    reverse; an integer, at random with this seed. ``limit`` is the maximum number of steps, by
    default :data:`STEPS` per instruction. Raises :class:`Fault` with the instruction's index and
    text, :class:`TvmtuneError` for words that cannot be decoded and for arrays that do not match.
    """
    if not isinstance(order, int) and order not in ORDERS:
        raise UsageError(f"order '{order}' is not known: use {', '.join(ORDERS)}, or a seed")
    if limit is None:
        limit = STEPS * max(_MIN_INSTRUCTIONS, len(program.instructions))
    return _Simulation(program, memory, limit).run(order)


def run_all_orders(
    program: Program, memory: Mapping[int, npt.NDArray[Any]], seeds: int = 2
) -> Result:
    """Run in all orders and in ``seeds`` random ones; raises :class:`Fault` if results differ."""
    first = run(program, memory)
    for order in (*ORDERS[1:], *range(seeds)):
        other = run(program, memory, order)
        for number, array in first.memory.items():
            if not np.array_equal(array, other.memory[number]):
                raise Fault(
                    f"'{program.buffers[number].name}' depends on the engines' speed: it differs "
                    f"between the orders greedy and {order}, so a token is missing."
                )
    return first


class _Simulation:
    def __init__(
        self, program: Program, memory: Mapping[int, npt.NDArray[Any]], limit: int
    ) -> None:
        self.program, self.config, self.limit = program, program.config, limit
        self.instructions = program.decode()
        self.operands = program.operands.tolist()
        for index, instruction in enumerate(self.instructions):
            if flags := tokens.invalid_flags(instruction):
                raise self.fault(index, f"its engine has no neighbor for {', '.join(flags)}")
        self.dram = _dram(program, memory)
        self.uops = UopBuffer(program)
        self.sram: dict[Memory, npt.NDArray[Any]] = {}
        for kind, dtype in ((Memory.INP, np.int8), (Memory.WGT, np.int8), (Memory.ACC, np.int32)):
            shape = (self.config.depth(kind), *self.config.element_shape(kind))
            noise = np.full(int(np.prod(shape)) * np.dtype(dtype).itemsize, _NOISE_BYTE, np.uint8)
            self.sram[kind] = noise.view(dtype).reshape(shape)
        self.commands: list[deque[int]] = [deque(), deque(), deque()]
        self.pending = dict.fromkeys(TokenQueue, 0)
        self.fetched = 0
        self.sequence: list[int] = []
        self.steps = dict.fromkeys(("gemm", "reset", "alu"), 0)
        self.traffic = {m.name.lower(): 0 for m in Memory if m is not Memory.ACC_8BIT}

    def run(self, order: str | int) -> Result:
        choose = self.chooser(order)
        while (engine := choose()) is not None:
            index = self.commands[engine].popleft()
            instruction = self.instructions[index]
            for queue in tokens.pops(instruction):
                self.pending[queue] -= 1
            if isinstance(instruction, Finish):
                self.finish(index)
            elif isinstance(instruction, Transfer):
                self.transfer(index, instruction)
            elif isinstance(instruction, Loops):
                self.loops(index, instruction)
            for queue in tokens.pushes(instruction):
                self.pending[queue] += 1
            self.sequence.append(index)
        self.ended()
        buffers = enumerate(self.program.buffers)
        memory = {n: self.dram[n].view(b.dtype).reshape(b.shape) for n, b in buffers}
        return Result(memory, self.sequence, self.steps, self.traffic)

    def ready(self, engine: Engine) -> bool:
        """Whether the next instruction of an engine has been fetched and its tokens are
        available."""
        queue = self.commands[engine]
        return bool(queue) and all(
            self.pending[q] for q in tokens.pops(self.instructions[queue[0]])
        )

    def fetch(self) -> None:
        while self.fetched < len(self.instructions):
            queue = self.commands[self.instructions[self.fetched].engine]
            if len(queue) >= tokens.COMMANDS:
                return
            queue.append(self.fetched)
            self.fetched += 1

    def chooser(self, order: str | int) -> Callable[[], Engine | None]:
        """A function that returns the engine to run next; None if none can."""
        draw = random.Random(order) if isinstance(order, int) else None
        turn = Engine.LOAD

        def choose() -> Engine | None:
            nonlocal turn
            self.fetch()
            if draw is not None:
                ready = [engine for engine in Engine if self.ready(engine)]
                return draw.choice(ready) if ready else None
            if order == "greedy":
                for _ in Engine:
                    if self.ready(turn):
                        return turn
                    turn = Engine((turn + 1) % len(Engine))
                return None
            return next((e for e in _PREFERENCE[str(order)] if self.ready(e)), None)

        return choose

    def finish(self, index: int) -> None:
        """FINISH: hardware signals completion even if other engines are still running."""
        late = min((queue[0] for queue in self.commands if queue), default=None)
        if self.fetched < len(self.instructions):
            late = self.fetched if late is None else min(late, self.fetched)
        if late is not None:
            raise self.fault(index, f"it ends the run before {self.name(late)} has run")

    def ended(self) -> None:
        """No engine can run: check that the program is complete."""
        stuck = []
        for engine, queue in zip(Engine, self.commands, strict=True):
            if queue:
                missing = [
                    q for q in tokens.pops(self.instructions[queue[0]]) if not self.pending[q]
                ]
                stuck.append(
                    f"{engine.name.lower()} waits for a token from "
                    f"{' and '.join(map(str, missing))} at {self.name(queue[0])}"
                )
        if stuck:
            raise Fault(f"deadlock: {'; '.join(stuck)}.")
        for queue_, count in self.pending.items():
            if count:
                raise Fault(f"{count} tokens from {queue_} are never taken.")
        if not any(isinstance(instruction, Finish) for instruction in self.instructions):
            raise Fault("no FINISH: the host would wait forever.")

    def transfer(self, index: int, transfer: Transfer) -> None:
        if transfer.x_size == 0:
            return
        operand = self.operands[index]
        if problem := bounds.transfer_problem(transfer, operand, self.program):
            raise self.fault(index, problem)
        memory = transfer.memory
        size = self.config.element_bytes(memory)
        counted = "acc" if memory is Memory.ACC_8BIT else memory.name.lower()
        self.traffic[counted] += size * transfer.y_size * transfer.x_size
        if memory is Memory.UOP:
            self.load_uops(index, transfer)
            return
        covered = bounds.on_chip(transfer)
        x = np.arange(transfer.x_size)
        elements = (
            transfer.dram_base + (np.arange(transfer.y_size) * transfer.x_stride)[:, None] + x
        )
        dram = self.dram[operand]
        dram = dram[: len(dram) // size * size].reshape(-1, size)
        if isinstance(transfer, Store):
            values = self.sram[Memory.ACC][covered].astype(np.int8)
            dram[elements.reshape(-1)] = values.view(np.uint8).reshape(-1, size)
            return
        kind = Memory.ACC if memory is Memory.ACC_8BIT else memory
        dtype = np.int32 if memory is Memory.ACC else np.int8
        padded = np.zeros(
            (*bounds.rows(transfer), *self.config.element_shape(kind)), self.sram[kind].dtype
        )
        loaded = dram[elements].view(dtype).reshape(*elements.shape, *padded.shape[2:])
        top, left = transfer.y_pad_0, transfer.x_pad_0
        padded[top : top + transfer.y_size, left : left + transfer.x_size] = loaded
        self.sram[kind][covered] = padded.reshape(-1, *padded.shape[2:])

    def load_uops(self, index: int, transfer: Transfer) -> None:
        """Designs disagree about rows and padding of uops, so only a single row is accepted."""
        if bounds.rows(transfer) != (1, transfer.x_size):
            raise self.fault(index, "uops are loaded in one row without padding")
        self.uops.load(transfer)

    def loops(self, index: int, loops: Loops) -> None:
        kind = "alu" if isinstance(loops, Alu) else "reset" if _resets(loops) else "gemm"
        count = loops.iter_out * loops.iter_in * (loops.uop_end - loops.uop_bgn)
        if count <= 0:
            raise self.fault(index, "it has no iterations: hardware would not terminate")
        if loops.uop_end > self.config.depth(Memory.UOP):
            raise self.fault(index, f"there is no uop {loops.uop_end - 1}")
        if (missing := self.uops.missing(loops)) is not None:
            raise self.fault(index, f"uop {missing} has not been loaded")
        uops = self.uops.of(loops)
        if problem := bounds.loops_problem(loops, uops, self.config):
            raise self.fault(index, problem)
        self.steps[kind] += count
        if (total := sum(self.steps.values())) > self.limit:
            raise self.fault(index, f"the program takes over {self.limit} steps ({total})")
        acc = self.sram[Memory.ACC]
        try:
            if isinstance(loops, Alu):
                numpy_kernels.alu(loops, uops, acc)
            elif isinstance(loops, Gemm):
                numpy_kernels.gemm(loops, uops, acc, self.sram[Memory.INP], self.sram[Memory.WGT])
        except numpy_kernels.ShiftError as error:
            raise self.fault(index, str(error)) from None

    def name(self, index: int) -> str:
        return f"instruction {index} ({isa.describe(self.instructions[index])})"

    def fault(self, index: int, reason: str) -> Fault:
        return Fault(f"{self.name(index)}: {reason}.", index)


def _resets(loops: Loops) -> bool:
    return isinstance(loops, Gemm) and loops.reset


def initial_memory(
    program: Program, memory: Mapping[int, npt.NDArray[Any]]
) -> dict[int, npt.NDArray[Any]]:
    """Each buffer's array before a run, not copied: from ``memory``, the program's contents, or
    zeros. Raises :class:`TvmtuneError` for one that is missing, or of another shape or dtype."""
    for number in memory:
        if not 0 <= number < len(program.buffers):
            raise TvmtuneError(f"memory is given for operand {number}, which does not exist")
    arrays = {}
    for number, buffer in enumerate(program.buffers):
        array = memory.get(number, program.contents.get(number))
        if array is None:
            if buffer.role in ("input", "constant"):
                raise TvmtuneError(
                    f"the {buffer.role} '{buffer.name}' (operand {number}) is missing"
                )
            array = np.zeros(buffer.shape, buffer.dtype)
        if array.shape != buffer.shape or array.dtype != buffer.dtype:
            raise TvmtuneError(
                f"memory of '{buffer.name}': {buffer.dtype} {buffer.shape} is needed, "
                f"not {array.dtype} {array.shape}"
            )
        arrays[number] = array
    return arrays


def _dram(program: Program, memory: Mapping[int, npt.NDArray[Any]]) -> dict[int, Bytes]:
    """A copy of each buffer, as bytes."""
    return {
        number: np.array(array, order="C").reshape(-1).view(np.uint8)
        for number, array in initial_memory(program, memory).items()
    }
