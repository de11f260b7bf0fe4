"""The time model: how long a program takes on the three engines. Its times are modelled, never
measured.

Each engine executes its instructions in order and starts one when it is free and its tokens are
available. Transfers share one memory port, in the order in which they become ready: a transfer
occupies the port for its bytes and rows, and a load finishes a latency later. Nothing else takes
time: fetching instructions and uops overlaps with execution.

The constants are those of ``constants.json``, which are not calibrated by measurements; records of
modelled times store them.
"""

from __future__ import annotations

import functools
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tvmtune.errors import TvmtuneError
from tvmtune_vta.hardware import tokens
from tvmtune_vta.hardware.config import Config, Memory
from tvmtune_vta.hardware.isa import Alu, Engine, Gemm, Instruction, Loops, Store, Transfer
from tvmtune_vta.hardware.program import Program
from tvmtune_vta.hardware.tokens import TokenQueue


@dataclass(frozen=True)
class TimingConstants:
    """Parameters of the model, in cycles unless stated otherwise."""

    mhz: int
    gemm_cycles: int
    """Per uop and iteration."""
    alu_cycles: int
    reset_cycles: int
    dma_bytes_per_cycle: int
    dma_latency_cycles: int
    """From the end of a load's turn at the port until its data are available."""
    dma_row_cycles: int
    """Port cycles per row, in addition to its bytes."""
    launch_us: float
    """Host microseconds per program."""

    @classmethod
    @functools.cache
    def default(cls) -> TimingConstants:
        """The constants of ``constants.json``."""
        return cls(**json.loads(Path(__file__).with_name("constants.json").read_text()))

    def seconds(self, cycles: int) -> float:
        """Seconds of a program of this many cycles, including its launch."""
        return cycles / self.mhz / 1e6 + self.launch_us / 1e6

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Timeline:
    """When each instruction ran, and what the engines waited for."""

    cycles: int
    """From the first instruction to the end of the last engine, without the launch."""
    spans: list[tuple[int, int, int]]
    """``(instruction, start, end)`` in cycles, in order of start."""
    busy: dict[str, int]
    """Busy cycles of each engine, by its name in lower case, and of the ``port``."""
    stalls: dict[str, int]
    """Stalled cycles, by ``ENGINE for QUEUE`` or ``ENGINE for the port``."""
    steps: dict[str, int]
    """Uops times iterations of ``gemm``, ``reset`` and ``alu``."""
    traffic: dict[str, int]
    """Bytes between DRAM and each memory, by its name in lower case."""
    constants: TimingConstants = field(repr=False)

    @property
    def seconds(self) -> float:
        """Modelled time of one run, including the launch."""
        return self.constants.seconds(self.cycles)

    @property
    def bound(self) -> int:
        """Lower bound in cycles, of the core and the port: max(GEMM + resets + ALU, bytes / port
        width)."""
        constants, steps = self.constants, self.steps
        core = (
            steps["gemm"] * constants.gemm_cycles
            + steps["reset"] * constants.reset_cycles
            + steps["alu"] * constants.alu_cycles
        )
        return max(core, -(-sum(self.traffic.values()) // constants.dma_bytes_per_cycle))

    @property
    def utilization(self) -> float:
        """Fraction of the time in which the core multiplies."""
        return self.steps["gemm"] * self.constants.gemm_cycles / self.cycles if self.cycles else 0.0

    def to_json(self) -> dict[str, Any]:
        """All fields except the spans."""
        return {
            "cycles": self.cycles,
            "seconds": self.seconds,
            "bound": self.bound,
            "utilisation": self.utilization,
            "busy": self.busy,
            "stalls": self.stalls,
            "steps": self.steps,
            "traffic": self.traffic,
            "constants": self.constants.to_json(),
        }


def program_timeline(program: Program, constants: TimingConstants | None = None) -> Timeline:
    """The modelled timeline of a program. Raises :class:`TvmtuneError` if it deadlocks;
    :mod:`tvmtune_vta.hardware.rules` says why."""
    return instructions_timeline(program.decode(), program.config, constants)


def instructions_timeline(
    instructions: Sequence[Instruction], config: Config, constants: TimingConstants | None = None
) -> Timeline:
    """:func:`program_timeline` for instructions that are not encoded."""
    constants = constants or TimingConstants.default()
    commands: list[list[InstructionCost]] = [[], [], []]
    for index, instruction in enumerate(instructions):
        cost = instruction_cost(index, instruction, config, constants)
        commands[cost.engine].append(cost)
    run = _TimelineSimulation(commands)
    for _ in instructions:
        run.step()
    steps, traffic = count_work(instructions, config)
    run.spans.sort(key=lambda span: (span[1], span[0]))
    names = [engine.name.lower() for engine in Engine]
    stalls = {
        f"{names[engine]} for {TokenQueue(queue) if queue >= 0 else 'the port'}": cycles
        for (engine, queue), cycles in run.stalls.items()
    }
    busy = dict(zip(names, run.busy, strict=True)) | {"port": run.port_busy}
    return Timeline(max(run.free), run.spans, busy, stalls, steps, traffic, constants)


class InstructionCost(NamedTuple):
    """The cost of an instruction as plain integers, for speed: a candidate has thousands."""

    number: int
    engine: int
    pops: tuple[int, ...]
    pushes: tuple[int, ...]
    turn: int
    """Cycles at the port, -1 if it does not use it."""
    work: int
    """Cycles from its start, or from the end of its turn at the port, to its end."""


class _TimelineSimulation:
    """Simulates the engines event by event."""

    def __init__(self, commands: Sequence[Sequence[InstructionCost]]) -> None:
        self.commands = [deque(each) for each in commands]
        self.pending: list[deque[int]] = [deque() for _ in TokenQueue]
        """When each pending token was given."""
        self.free, self.busy = [0, 0, 0], [0, 0, 0]
        self.port, self.port_busy = 0, 0
        self.spans: list[tuple[int, int, int]] = []
        self.stalls: dict[tuple[int, int], int] = {}
        """By engine and queue, -1 for the port."""

    def step(self) -> None:
        """Run the instruction that is ready first. Those without their tokens become ready later,
        because an earlier instruction must give them."""
        first, ready = -1, 0
        for engine, waiting in enumerate(self.commands):
            if not waiting:
                continue
            at = self.free[engine]
            for queue in waiting[0].pops:
                if not self.pending[queue]:
                    break
                at = max(at, self.pending[queue][0])
            else:
                if first < 0 or at < ready:
                    first, ready = engine, at
        if first < 0:
            raise TvmtuneError("the program deadlocks: tokens are missing")
        cost = self.commands[first].popleft()
        late, reason = self.free[first], -1
        for queue in cost.pops:
            given = self.pending[queue].popleft()
            if given > late:
                late, reason = given, queue
        if reason >= 0:
            self._stall(first, reason, late - self.free[first])
        start = ready
        if cost.turn >= 0:
            start = max(ready, self.port)
            if start > ready:
                self._stall(first, -1, start - ready)
            self.port = start + cost.turn
            self.port_busy += cost.turn
            end = self.port + cost.work
        else:
            end = start + cost.work
        self.busy[first] += end - start
        self.free[first] = end
        for queue in cost.pushes:
            self.pending[queue].append(end)
        if end > start:
            self.spans.append((cost.number, start, end))

    def _stall(self, engine: int, queue: int, cycles: int) -> None:
        self.stalls[engine, queue] = self.stalls.get((engine, queue), 0) + cycles


def instruction_cost(
    index: int, instruction: Instruction, config: Config, constants: TimingConstants
) -> InstructionCost:
    """The cost of one instruction."""
    engine = instruction.engine
    pops, pushes = tokens.queues(instruction)
    if isinstance(instruction, Transfer):
        if not instruction.x_size:
            return InstructionCost(index, engine, pops, pushes, -1, 0)
        latency = 0 if isinstance(instruction, Store) else constants.dma_latency_cycles
        return InstructionCost(
            index, engine, pops, pushes, _turn(instruction, config, constants), latency
        )
    return InstructionCost(index, engine, pops, pushes, -1, _work(instruction, constants))


def _turn(transfer: Transfer, config: Config, constants: TimingConstants) -> int:
    """Cycles at the port."""
    size = transfer.y_size * transfer.x_size * config.element_bytes(transfer.memory)
    rows = transfer.y_size * constants.dma_row_cycles
    return -(-size // constants.dma_bytes_per_cycle) + rows


def _work(instruction: Instruction, constants: TimingConstants) -> int:
    if not isinstance(instruction, Loops):
        return 0
    if isinstance(instruction, Alu):
        return _steps(instruction) * constants.alu_cycles
    resets = isinstance(instruction, Gemm) and instruction.reset
    return _steps(instruction) * (constants.reset_cycles if resets else constants.gemm_cycles)


def _steps(loops: Loops) -> int:
    return loops.iter_out * loops.iter_in * (loops.uop_end - loops.uop_bgn)


def count_work(
    instructions: Sequence[Instruction], config: Config
) -> tuple[dict[str, int], dict[str, int]]:
    """Steps of ``gemm``, ``reset`` and ``alu``, and bytes between DRAM and each memory."""
    steps = dict.fromkeys(("gemm", "reset", "alu"), 0)
    traffic = {m.name.lower(): 0 for m in Memory if m is not Memory.ACC_8BIT}
    for instruction in instructions:
        if isinstance(instruction, Alu):
            steps["alu"] += _steps(instruction)
        elif isinstance(instruction, Gemm):
            steps["reset" if instruction.reset else "gemm"] += _steps(instruction)
        elif isinstance(instruction, Transfer) and instruction.x_size:
            size = config.element_bytes(instruction.memory)
            name = (
                "acc" if instruction.memory is Memory.ACC_8BIT else instruction.memory.name.lower()
            )
            traffic[name] += size * instruction.y_size * instruction.x_size
    return steps, traffic
