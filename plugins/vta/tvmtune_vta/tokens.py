"""The four queues of tokens between the engines, and what they say about order, without any data.

Engines and tokens form a deterministic network: whether a stream comes to its end, and which
instruction must have ended before which other, does not depend on how quick the engines are.

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

from tvmtune_vta.isa import Engine, Instruction

COMMANDS = 512
"""Instructions that wait for an engine; fetching stops while one of the three queues is full."""
PENDING = 254
"""Tokens that may lie in a queue: the Chisel design's counters lose those beyond 255."""


class Queue(enum.IntEnum):
    """Tokens from one engine to its neighbour."""

    LOAD_TO_COMPUTE = 0
    COMPUTE_TO_LOAD = 1
    COMPUTE_TO_STORE = 2
    STORE_TO_COMPUTE = 3

    @property
    def ends(self) -> tuple[Engine, Engine]:
        """Who gives and who takes."""
        giver, taker = self.name.split("_TO_")
        return Engine[giver], Engine[taker]

    def __str__(self) -> str:
        return self.name.replace("_", " ").lower()


_POPS = {
    Engine.LOAD: {"pop_next": Queue.COMPUTE_TO_LOAD},
    Engine.COMPUTE: {"pop_prev": Queue.LOAD_TO_COMPUTE, "pop_next": Queue.STORE_TO_COMPUTE},
    Engine.STORE: {"pop_prev": Queue.COMPUTE_TO_STORE},
}
_PUSHES = {
    Engine.LOAD: {"push_next": Queue.LOAD_TO_COMPUTE},
    Engine.COMPUTE: {"push_prev": Queue.COMPUTE_TO_LOAD, "push_next": Queue.COMPUTE_TO_STORE},
    Engine.STORE: {"push_prev": Queue.STORE_TO_COMPUTE},
}


def pops(instruction: Instruction) -> tuple[Queue, ...]:
    """Queues that it takes a token from before it begins."""
    return queues(instruction)[0]


def pushes(instruction: Instruction) -> tuple[Queue, ...]:
    """Queues that it puts a token into when it has ended."""
    return queues(instruction)[1]


def queues(instruction: Instruction) -> tuple[tuple[Queue, ...], tuple[Queue, ...]]:
    """Both."""
    key = (
        *(instruction.engine, instruction.pop_prev, instruction.pop_next),
        *(instruction.push_prev, instruction.push_next),
    )
    if key not in _known:
        taken, given = (
            tuple(q for flag, q in table[instruction.engine].items() if getattr(instruction, flag))
            for table in (_POPS, _PUSHES)
        )
        _known[key] = taken, given
    return _known[key]


_known: dict[tuple[Any, ...], tuple[tuple[Queue, ...], tuple[Queue, ...]]] = {}
"""By engine and flags: streams are long, and have few kinds of these."""


def strays(instruction: Instruction) -> list[str]:
    """Flags that name a neighbour which the engine has not."""
    known = {*_POPS[instruction.engine], *_PUSHES[instruction.engine]}
    flags = ("pop_prev", "pop_next", "push_prev", "push_next")
    return [flag for flag in flags if getattr(instruction, flag) and flag not in known]


@dataclass(frozen=True)
class Order:
    """What the tokens of a stream enforce."""

    sequence: list[int]
    """An order in which the instructions can run, the stream's own if that is one; shorter than the
    stream if it gets stuck."""
    place: npt.NDArray[np.int64]
    """(n,): which instruction of its engine each is, from 1."""
    before: npt.NDArray[np.int64]
    """(n, 3): how many instructions of each engine have surely ended, or are this one, when it ends."""
    waiting: list[tuple[int, list[Queue]]]
    """Instructions that never get their tokens, and from which queues: the first of each engine."""
    left: dict[Queue, int]
    """Tokens that nobody takes."""
    pending: dict[Queue, tuple[int, int]]
    """The most tokens that can ever lie in each queue, and the instruction that gives the last."""


def order(instructions: Sequence[Instruction]) -> Order:
    """Follow the tokens of a stream; takes time in proportion to its length."""
    engines = [int(i.engine) for i in instructions]
    taken, given = [pops(i) for i in instructions], [pushes(i) for i in instructions]
    count = len(instructions)
    place = np.zeros(count, np.int64)
    before = np.zeros((count, 3), np.int64)
    commands: list[deque[int]] = [deque(), deque(), deque()]
    clocks = np.zeros((3, 3), np.int64)
    tokens: list[deque[npt.NDArray[np.int64]]] = [deque() for _ in Queue]
    sequence: list[int] = []
    fetched = 0
    while True:
        while fetched < count and len(commands[engines[fetched]]) < COMMANDS:
            commands[engines[fetched]].append(fetched)
            fetched += 1
        # Of those that can run the first one: where tokens allow the stream's own order, it is this.
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
    left = {q: len(tokens[q]) for q in Queue if tokens[q]}
    return Order(
        sequence, place, before, waiting, left, _pending(sequence, engines, taken, given, before)
    )


def _pending(
    sequence: list[int],
    engines: list[int],
    taken: Sequence[Sequence[Queue]],
    given: Sequence[Sequence[Queue]],
    before: npt.NDArray[np.int64],
) -> dict[Queue, tuple[int, int]]:
    """A queue is fullest when its giver is as far, and its taker as little far, as tokens allow."""
    most = {}
    for queue in Queue:
        giver, taker = queue.ends
        consumed = [0]
        for index in sequence:
            if engines[index] == taker:
                consumed.append(consumed[-1] + (queue in taken[index]))
        produced, best = 0, (0, -1)
        for index in sequence:
            if engines[index] == giver and queue in given[index]:
                produced += 1
                lying = produced - consumed[int(before[index, taker])]
                best = max(best, (lying, index), key=lambda pair: pair[0])
        most[queue] = best
    return most
