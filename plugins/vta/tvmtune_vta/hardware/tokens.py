"""The token queues between the engines, and the execution order that they enforce.

Engines and tokens form a deterministic (Kahn) network: whether a program terminates, and which
instruction must finish before which other, does not depend on the engines' speed.

Source: the VTA hardware repository, ``hardware/xilinx/src/vta.cc`` (engines, queues) and
``hardware/chisel/src/main/scala/core`` (command queues of 512, counters of 8 bits).
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tvmtune_vta.hardware.isa import Engine, Instruction

COMMANDS = 512
"""Depth of an engine's command queue; fetching stops while one of the three is full."""
PENDING = 254
"""Capacity of a token queue: the Chisel design's counters lose tokens beyond 255."""


class TokenQueue(enum.IntEnum):
    """Tokens from one engine to its neighbor."""

    LOAD_TO_COMPUTE = 0
    COMPUTE_TO_LOAD = 1
    COMPUTE_TO_STORE = 2
    STORE_TO_COMPUTE = 3

    @property
    def ends(self) -> tuple[Engine, Engine]:
        """The engine that gives and the engine that takes."""
        producer, consumer = self.name.split("_TO_")
        return Engine[producer], Engine[consumer]

    def __str__(self) -> str:
        return self.name.replace("_", " ").lower()


_POPS = {
    Engine.LOAD: {"pop_next": TokenQueue.COMPUTE_TO_LOAD},
    Engine.COMPUTE: {
        "pop_prev": TokenQueue.LOAD_TO_COMPUTE,
        "pop_next": TokenQueue.STORE_TO_COMPUTE,
    },
    Engine.STORE: {"pop_prev": TokenQueue.COMPUTE_TO_STORE},
}
_PUSHES = {
    Engine.LOAD: {"push_next": TokenQueue.LOAD_TO_COMPUTE},
    Engine.COMPUTE: {
        "push_prev": TokenQueue.COMPUTE_TO_LOAD,
        "push_next": TokenQueue.COMPUTE_TO_STORE,
    },
    Engine.STORE: {"push_prev": TokenQueue.STORE_TO_COMPUTE},
}


def pops(instruction: Instruction) -> tuple[TokenQueue, ...]:
    """Queues that the instruction takes a token from before it starts."""
    return queues(instruction)[0]


def pushes(instruction: Instruction) -> tuple[TokenQueue, ...]:
    """Queues that the instruction puts a token into when it finishes."""
    return queues(instruction)[1]


def queues(instruction: Instruction) -> tuple[tuple[TokenQueue, ...], tuple[TokenQueue, ...]]:
    """The results of :func:`pops` and :func:`pushes`."""
    key = (
        *(instruction.engine, instruction.pop_prev, instruction.pop_next),
        *(instruction.push_prev, instruction.push_next),
    )
    if key not in _queues_by_flags:
        taken, given = (
            tuple(q for flag, q in table[instruction.engine].items() if getattr(instruction, flag))
            for table in (_POPS, _PUSHES)
        )
        _queues_by_flags[key] = taken, given
    return _queues_by_flags[key]


_queues_by_flags: dict[tuple[Any, ...], tuple[tuple[TokenQueue, ...], tuple[TokenQueue, ...]]] = {}
"""By engine and flags: programs are long and use few combinations of them."""


def invalid_flags(instruction: Instruction) -> list[str]:
    """Flags for a neighbor that the engine does not have."""
    valid = {*_POPS[instruction.engine], *_PUSHES[instruction.engine]}
    flags = ("pop_prev", "pop_next", "push_prev", "push_next")
    return [flag for flag in flags if getattr(instruction, flag) and flag not in valid]


@dataclass(frozen=True)
class Order:
    """The order that the tokens of a program enforce."""

    sequence: list[int]
    """An order in which the instructions can run, program order if possible; incomplete if the
    program deadlocks."""
    place: npt.NDArray[np.int64]
    """(n,): the position of each instruction within its engine, from 1."""
    before: npt.NDArray[np.int64]
    """(n, 3): a vector clock: how many instructions of each engine have certainly finished when
    this one finishes, itself included."""
    waiting: list[tuple[int, list[TokenQueue]]]
    """The first instruction of each engine that deadlocks, and the queues whose tokens are
    missing."""
    left: dict[TokenQueue, int]
    """Tokens that are never taken."""
    pending: dict[TokenQueue, tuple[int, int]]
    """The maximum number of pending tokens in each queue, and the instruction that gives the
    last."""


def order(instructions: Sequence[Instruction]) -> Order:
    """Analyze the tokens of a program, in time linear in its length."""
    engines = [int(i.engine) for i in instructions]
    taken, given = [pops(i) for i in instructions], [pushes(i) for i in instructions]
    count = len(instructions)
    place = np.zeros(count, np.int64)
    before = np.zeros((count, 3), np.int64)
    commands: list[deque[int]] = [deque(), deque(), deque()]
    clocks = np.zeros((3, 3), np.int64)
    tokens: list[deque[npt.NDArray[np.int64]]] = [deque() for _ in TokenQueue]
    sequence: list[int] = []
    fetched = 0
    while True:
        while fetched < count and len(commands[engines[fetched]]) < COMMANDS:
            commands[engines[fetched]].append(fetched)
            fetched += 1
        # The earliest that can run, so that the result is program order if possible.
        # this.
        index = -1
        for queue in commands:
            if queue and (index < 0 or queue[0] < index):
                for source in taken[queue[0]]:
                    if not tokens[source]:
                        break
                else:
                    index = queue[0]
        if index < 0:
            break
        commands[engines[index]].popleft()
        clock = clocks[engines[index]]
        for source in taken[index]:
            np.maximum(clock, tokens[source].popleft(), out=clock)
        clock[engines[index]] += 1
        place[index], before[index] = clock[engines[index]], clock
        for target in given[index]:
            tokens[target].append(before[index])
        sequence.append(index)
    waiting = sorted(
        (queue[0], [q for q in taken[queue[0]] if not tokens[q]]) for queue in commands if queue
    )
    left = {q: len(tokens[q]) for q in TokenQueue if tokens[q]}
    return Order(
        sequence, place, before, waiting, left, _pending(sequence, engines, taken, given, before)
    )


def _pending(
    sequence: list[int],
    engines: list[int],
    taken: Sequence[Sequence[TokenQueue]],
    given: Sequence[Sequence[TokenQueue]],
    before: npt.NDArray[np.int64],
) -> dict[TokenQueue, tuple[int, int]]:
    """A queue is fullest when its giver is as far ahead, and its taker as far behind, as tokens
    allow."""
    most = {}
    for queue in TokenQueue:
        producer, consumer = queue.ends
        consumed = [0]
        for index in sequence:
            if engines[index] == consumer:
                consumed.append(consumed[-1] + (queue in taken[index]))
        produced, best = 0, (0, -1)
        for index in sequence:
            if engines[index] == producer and queue in given[index]:
                produced += 1
                pending = produced - consumed[int(before[index, consumer])]
                best = max(best, (pending, index), key=lambda pair: pair[0])
        most[queue] = best
    return most
