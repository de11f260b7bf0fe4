"""How long a stream takes on the three engines: a model, and never called anything else.

Each engine takes its instructions in order and starts one when it is free and its tokens are there.
Transfers go through one port to memory, one after another in the order in which they become ready: a
transfer occupies it for its bytes and its rows, and a load ends its latency later. Nothing else takes
time: fetching instructions and uops for the next one is hidden behind those that run.

The constants are those of ``constants.json``, which no measurement has set: a record of a modelled time
carries them.
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
from tvmtune_vta import tokens
from tvmtune_vta.config import Config, Memory
from tvmtune_vta.isa import Alu, Engine, Gemm, Instruction, Loops, Store, Transfer
from tvmtune_vta.program import Program
from tvmtune_vta.tokens import Queue


@dataclass(frozen=True)
class Constants:
    """What the model knows of the hardware, in cycles unless told."""

    mhz: int
    gemm_cycles: int
    """For a uop in an iteration."""
    alu_cycles: int
    reset_cycles: int
    dma_bytes_per_cycle: int
    dma_latency_cycles: int
    """From the end of a load's turn at the port to its data being there."""
    dma_row_cycles: int
    """That the port needs for each row, besides its bytes."""
    launch_us: float
    """Microseconds of the host for each program."""

    @classmethod
    @functools.cache
    def published(cls) -> Constants:
        """Those of the committed file."""
        return cls(**json.loads(Path(__file__).with_name("constants.json").read_text()))

    def seconds(self, cycles: int) -> float:
        """Of a program that takes so many cycles, its launch included."""
        return cycles / self.mhz / 1e6 + self.launch_us / 1e6

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Timeline:
    """When each instruction ran, and what the engines waited for."""

    cycles: int
    """From the first instruction to the last engine's end, without the launch."""
    spans: list[tuple[int, int, int]]
    """``(instruction, start, end)`` in cycles, in the order in which they started."""
    busy: dict[str, int]
    """Cycles in which each engine worked, by its name in lower case, and those of the ``port``."""
    stalls: dict[str, int]
    """Cycles in which an engine waited, by ``ENGINE for QUEUE`` or ``ENGINE for the port``."""
    steps: dict[str, int]
    """Uops times iterations of ``gemm``, ``reset`` and ``alu``."""
    traffic: dict[str, int]
    """Bytes between DRAM and each memory, by its name in lower case."""
    constants: Constants = field(repr=False)

    @property
    def seconds(self) -> float:
        """Modelled time of one run, launch included."""
        return self.constants.seconds(self.cycles)

    @property
    def bound(self) -> int:
        """Cycles that the core or the port need at least: max(products + resets + ALU, bytes / 8)."""
        own, steps = self.constants, self.steps
        core = (
            steps["gemm"] * own.gemm_cycles
            + steps["reset"] * own.reset_cycles
            + steps["alu"] * own.alu_cycles
        )
        return max(core, -(-sum(self.traffic.values()) // own.dma_bytes_per_cycle))

    @property
    def utilisation(self) -> float:
        """The part of the time in which the core multiplies."""
        return self.steps["gemm"] * self.constants.gemm_cycles / self.cycles if self.cycles else 0.0

    def to_json(self) -> dict[str, Any]:
        """All but the spans."""
        return {
            "cycles": self.cycles,
            "seconds": self.seconds,
            "bound": self.bound,
            "utilisation": self.utilisation,
            "busy": self.busy,
            "stalls": self.stalls,
            "steps": self.steps,
            "traffic": self.traffic,
            "constants": self.constants.to_json(),
        }


def model(program: Program, constants: Constants | None = None) -> Timeline:
    """Run a program through the model. Raises :class:`TvmtuneError` for one that does not come to its
    end; :mod:`tvmtune_vta.rules` says why."""
    return timeline(program.decode(), program.config, constants)


def timeline(
    instructions: Sequence[Instruction], config: Config, constants: Constants | None = None
) -> Timeline:
    """:func:`model` for instructions that nobody has encoded yet."""
    constants = constants or Constants.published()
    commands: list[list[Planned]] = [[], [], []]
    for index, instruction in enumerate(instructions):
        planned = plan(index, instruction, config, constants)
        commands[planned.engine].append(planned)
    run = _Run(commands)
    for _ in instructions:
        run.step()
    steps, traffic = count(instructions, config)
    run.spans.sort(key=lambda span: (span[1], span[0]))
    names = [engine.name.lower() for engine in Engine]
    stalls = {
        f"{names[engine]} for {Queue(queue) if queue >= 0 else 'the port'}": cycles
        for (engine, queue), cycles in run.stalls.items()
    }
    busy = dict(zip(names, run.busy, strict=True)) | {"port": run.port_busy}
    return Timeline(max(run.free), run.spans, busy, stalls, steps, traffic, constants)


class Planned(NamedTuple):
    """What the model needs of an instruction, as plain numbers: a candidate has thousands of them."""

    number: int
    engine: int
    pops: tuple[int, ...]
    pushes: tuple[int, ...]
    turn: int
    """Cycles at the port, -1 for what does not need it."""
    work: int
    """Cycles from its start, or the end of its turn, to its end."""


class _Run:
    """The engines on their way."""

    def __init__(self, commands: Sequence[Sequence[Planned]]) -> None:
        self.commands = [deque(each) for each in commands]
        self.lying: list[deque[int]] = [deque() for _ in Queue]
        """When each token was given."""
        self.free, self.busy = [0, 0, 0], [0, 0, 0]
        self.port, self.port_busy = 0, 0
        self.spans: list[tuple[int, int, int]] = []
        self.stalls: dict[tuple[int, int], int] = {}
        """By engine and queue, -1 for the port."""

    def step(self) -> None:
        """The instruction that is ready first runs. Those whose tokens are not there yet will be ready
        later than it is, because somebody has to give them first."""
        first, ready = -1, 0
        for engine, waiting in enumerate(self.commands):
            if not waiting:
                continue
            at = self.free[engine]
            for queue in waiting[0].pops:
                if not self.lying[queue]:
                    break
                at = max(at, self.lying[queue][0])
            else:
                if first < 0 or at < ready:
                    first, ready = engine, at
        if first < 0:
            raise TvmtuneError("the program does not come to its end: tokens are missing.")
        planned = self.commands[first].popleft()
        late, reason = self.free[first], -1
        for queue in planned.pops:
            given = self.lying[queue].popleft()
            if given > late:
                late, reason = given, queue
        if reason >= 0:
            self._stall(first, reason, late - self.free[first])
        start = ready
        if planned.turn >= 0:
            start = max(ready, self.port)
            if start > ready:
                self._stall(first, -1, start - ready)
            self.port = start + planned.turn
            self.port_busy += planned.turn
            end = self.port + planned.work
        else:
            end = start + planned.work
        self.busy[first] += end - start
        self.free[first] = end
        for queue in planned.pushes:
            self.lying[queue].append(end)
        if end > start:
            self.spans.append((planned.number, start, end))

    def _stall(self, engine: int, queue: int, cycles: int) -> None:
        self.stalls[engine, queue] = self.stalls.get((engine, queue), 0) + cycles


def plan(index: int, instruction: Instruction, config: Config, constants: Constants) -> Planned:
    """What the model needs of the instruction with this number."""
    engine = instruction.engine
    pops, pushes = tokens.queues(instruction)
    if isinstance(instruction, Transfer):
        if not instruction.x_size:
            return Planned(index, engine, pops, pushes, -1, 0)
        latency = 0 if isinstance(instruction, Store) else constants.dma_latency_cycles
        return Planned(index, engine, pops, pushes, _turn(instruction, config, constants), latency)
    return Planned(index, engine, pops, pushes, -1, _work(instruction, constants))


def _turn(transfer: Transfer, config: Config, constants: Constants) -> int:
    """Cycles at the port."""
    size = transfer.y_size * transfer.x_size * config.element_bytes(transfer.memory)
    rows = transfer.y_size * constants.dma_row_cycles
    return -(-size // constants.dma_bytes_per_cycle) + rows


def _work(instruction: Instruction, constants: Constants) -> int:
    if not isinstance(instruction, Loops):
        return 0
    if isinstance(instruction, Alu):
        return _steps(instruction) * constants.alu_cycles
    resets = isinstance(instruction, Gemm) and instruction.reset
    return _steps(instruction) * (constants.reset_cycles if resets else constants.gemm_cycles)


def _steps(loops: Loops) -> int:
    return loops.iter_out * loops.iter_in * (loops.uop_end - loops.uop_bgn)


def count(
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
