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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tvmtune.errors import TvmtuneError
from tvmtune_vta import isa, tokens
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
        return self.cycles / self.constants.mhz / 1e6 + self.constants.launch_us / 1e6

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
    constants = constants or Constants.published()
    instructions = program.decode()
    commands: list[deque[int]] = [deque(), deque(), deque()]
    for index, instruction in enumerate(instructions):
        commands[instruction.engine].append(index)
    taken = [tokens.pops(i) for i in instructions]
    given = [tokens.pushes(i) for i in instructions]
    lying: dict[Queue, deque[int]] = {queue: deque() for queue in Queue}
    """When each token was given."""
    free, port = [0, 0, 0], 0
    spans: list[tuple[int, int, int]] = []
    busy = {engine.name.lower(): 0 for engine in Engine} | {"port": 0}
    stalls: dict[str, int] = {}
    for _ in instructions:
        head = _next(commands, taken, lying, free)
        if head is None:
            raise TvmtuneError("the program does not come to its end: tokens are missing.")
        ready, engine = head
        index = commands[engine].popleft()
        instruction, name = instructions[index], engine.name.lower()
        late: tuple[int, Queue] | None = None
        for queue in taken[index]:
            late = max(late or (0, queue), (lying[queue].popleft(), queue), key=lambda p: p[0])
        if late is not None and late[0] > free[engine]:
            _add(stalls, f"{name} for {late[1]}", late[0] - free[engine])
        start = ready
        if isinstance(instruction, Transfer) and instruction.x_size:
            start = max(ready, port)
            if start > ready:
                _add(stalls, f"{name} for the port", start - ready)
            turn = _turn(instruction, program.config, constants)
            port = start + turn
            busy["port"] += turn
            end = port + (0 if isinstance(instruction, Store) else constants.dma_latency_cycles)
        else:
            end = start + _work(instruction, constants)
        busy[name] += end - start
        free[engine] = end
        for queue in given[index]:
            lying[queue].append(end)
        if end > start:
            spans.append((index, start, end))
    steps, traffic = count(instructions, program.config)
    spans.sort(key=lambda span: (span[1], span[0]))
    return Timeline(max(free), spans, busy, stalls, steps, traffic, constants)


def _next(
    commands: list[deque[int]],
    taken: list[list[Queue]],
    lying: dict[Queue, deque[int]],
    free: list[int],
) -> tuple[int, Engine] | None:
    """Who starts next: the one that is ready first. Those whose tokens are not there yet will be ready
    later than it is, because somebody has to give them first."""
    best: tuple[int, Engine] | None = None
    for engine in Engine:
        if not commands[engine]:
            continue
        needed = taken[commands[engine][0]]
        if all(lying[queue] for queue in needed):
            ready = max([free[engine], *(lying[queue][0] for queue in needed)])
            if best is None or ready < best[0]:
                best = ready, engine
    return best


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


def count(instructions: list[Instruction], config: Config) -> tuple[dict[str, int], dict[str, int]]:
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


def _add(counts: dict[str, int], name: str, cycles: int) -> None:
    counts[name] = counts.get(name, 0) + cycles


def picture(program: Program, timeline: Timeline, width: int = 1200) -> str:
    """The timeline as SVG: a row for each engine, a box for each instruction, with its text on top when
    pointed at."""
    scale = width / max(1, timeline.cycles)
    instructions = program.decode()
    height, gap = 40, 10
    boxes = []
    for index, start, end in timeline.spans:
        instruction = instructions[index]
        y = 24 + instruction.engine * (height + gap)
        kind = _kind(instruction)
        boxes.append(
            f'<rect class="{kind}" x="{100 + start * scale:.2f}" y="{y}" '
            f'width="{max(0.3, (end - start) * scale):.2f}" height="{height}">'
            f"<title>{index}: {isa.describe(instruction)}, cycles {start} to {end}</title></rect>"
        )
    names = [
        f'<text x="0" y="{24 + engine * (height + gap) + height / 2}">{engine.name.lower()}</text>'
        for engine in Engine
    ]
    total = f"{timeline.cycles} cycles, {1e6 * timeline.seconds:.0f} us modelled"
    style = (
        "text{font:14px sans-serif} .inp{fill:#4c78a8} .wgt{fill:#72b7b2} .other{fill:#bab0ac} "
        ".gemm{fill:#54a24b} .reset{fill:#b5cf6b} .alu{fill:#f58518} .store{fill:#e45756}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 120}" '
        f'height="{40 + 3 * (height + gap)}"><style>{style}</style>'
        f'<text x="100" y="14">{total}, core multiplies {100 * timeline.utilisation:.0f}%</text>'
        f"{''.join(names)}{''.join(boxes)}</svg>\n"
    )


def _kind(instruction: Instruction) -> str:
    if isinstance(instruction, Store):
        return "store"
    if isinstance(instruction, Transfer):
        return {Memory.INP: "inp", Memory.WGT: "wgt"}.get(instruction.memory, "other")
    if isinstance(instruction, Gemm):
        return "reset" if instruction.reset else "gemm"
    return "alu" if isinstance(instruction, Alu) else "other"
