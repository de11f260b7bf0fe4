"""The time model's cycle count as compiled code, about a hundred times as fast as
:func:`tvmtune_vta.timing.time_model.instructions_timeline`, which also returns the timeline."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tvmtune.errors import TvmtuneError
from tvmtune_vta.hardware.config import Config
from tvmtune_vta.hardware.isa import Engine, Instruction
from tvmtune_vta.hardware.tokens import TokenQueue
from tvmtune_vta.timing import time_model
from tvmtune_vta.timing.time_model import TimingConstants

_ENGINES, _QUEUES = len(Engine), len(TokenQueue)


def count_cycles(
    parts: Sequence[list[Instruction]], config: Config, constants: TimingConstants | None = None
) -> int:
    """Cycles of the instructions of all ``parts``, in order, as
    :func:`time_model.instructions_timeline` counts them. Parts that are the same list object are
    converted once.

    Raises :class:`TvmtuneError` if the instructions deadlock.
    """
    import tvm

    constants = constants or TimingConstants.default()
    converted: dict[int, list[npt.NDArray[np.int64]]] = {}
    for part in parts:
        if id(part) not in converted:
            converted[id(part)] = _rows(part, config, constants)
    engines = [np.concatenate([converted[id(part)][e] for part in parts]) for e in range(_ENGINES)]
    edges = np.cumsum([0, *map(len, engines)]).astype(np.int64)
    table = np.concatenate(engines)
    pending = np.zeros((_QUEUES, len(table) + 1), np.int64)
    zeros = np.zeros(2, np.int64)
    result = tvm.runtime.tensor(zeros)
    _compiled()(*(tvm.runtime.tensor(array) for array in (table, edges, pending)), result)
    total, stuck = result.numpy().tolist()
    if stuck:
        raise TvmtuneError("the program deadlocks: tokens are missing")
    return int(total)


def _rows(
    part: list[Instruction], config: Config, constants: TimingConstants
) -> list[npt.NDArray[np.int64]]:
    """The instructions of each engine: bit masks of the queues they pop and push, cycles at the
    port or -1, and cycles of work."""
    rows: list[list[tuple[int, int, int, int]]] = [[] for _ in range(_ENGINES)]
    for index, instruction in enumerate(part):
        cost = time_model.instruction_cost(index, instruction, config, constants)
        popped, pushed = (sum(1 << q for q in queues) for queues in (cost.pops, cost.pushes))
        rows[cost.engine].append((popped, pushed, cost.turn, cost.work))
    return [np.array(engine, np.int64).reshape(-1, 4) for engine in rows]


@functools.cache
def _compiled() -> Any:
    """``run(table, edges, pending, result)``: ``table`` int64 (n, 4), rows as :func:`_rows` makes
    them, engine by engine, starting at ``edges`` (int64, engines + 1); ``pending`` int64 (queues, n
    + 1) is workspace for tokens; ``result`` int64 (2,): cycles, and whether an instruction never
    started."""
    import tvm

    return tvm.compile(tvm.IRModule({"run": _engines()}), "llvm")["run"]


def _engines() -> Any:
    from tvm.script import tirx as T

    engines, queues = _ENGINES, _QUEUES

    @T.prim_func(s_tir=True)
    def run(table_: T.handle, edges_: T.handle, pending_: T.handle, result_: T.handle) -> None:
        count = T.int32()
        room = T.int32()
        table = T.match_buffer(table_, (count, 4), "int64")
        edges = T.match_buffer(edges_, (engines + 1,), "int64")
        pending = T.match_buffer(pending_, (queues, room), "int64")
        result = T.match_buffer(result_, (2,), "int64")
        next_ = T.alloc_buffer((engines,), "int32")
        free = T.alloc_buffer((engines,), "int64")
        head = T.alloc_buffer((queues,), "int32")
        tail = T.alloc_buffer((queues,), "int32")
        first = T.alloc_buffer((1,), "int32")
        possible = T.alloc_buffer((1,), "int32")
        at = T.alloc_buffer((1,), "int64")
        ready = T.alloc_buffer((1,), "int64")
        port = T.alloc_buffer((1,), "int64")
        port[0] = T.int64(0)
        for e in range(engines):
            next_[e] = T.Cast("int32", edges[e])
            free[e] = T.int64(0)
        for q in range(queues):
            head[q] = 0
            tail[q] = 0
        for _ in range(count):
            first[0] = -1
            ready[0] = T.int64(0)
            for e in range(engines):
                if T.Cast("int64", next_[e]) < edges[e + 1]:
                    at[0] = free[e]
                    possible[0] = 1
                    for q in range(queues):
                        if T.bitwise_and(table[next_[e], 0], T.int64(1) << T.Cast("int64", q)) != 0:
                            if head[q] == tail[q]:
                                possible[0] = 0
                            else:
                                at[0] = T.max(at[0], pending[q, head[q]])
                    if possible[0] == 1 and (first[0] < 0 or at[0] < ready[0]):
                        first[0] = e
                        ready[0] = at[0]
            if first[0] >= 0:
                row: T.let[T.int32] = next_[first[0]]
                for q in range(queues):
                    if T.bitwise_and(table[row, 0], T.int64(1) << T.Cast("int64", q)) != 0:
                        head[q] += 1
                if table[row, 2] >= T.int64(0):
                    port[0] = T.max(ready[0], port[0]) + table[row, 2]
                    ready[0] = port[0]
                free[first[0]] = ready[0] + table[row, 3]
                for q in range(queues):
                    if T.bitwise_and(table[row, 1], T.int64(1) << T.Cast("int64", q)) != 0:
                        pending[q, tail[q]] = free[first[0]]
                        tail[q] += 1
                next_[first[0]] += 1
            else:
                result[1] = T.int64(1)
        for e in range(engines):
            result[0] = T.max(result[0], free[e])

    return run
