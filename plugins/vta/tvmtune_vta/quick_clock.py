"""The time model's cycles alone, as machine code: :func:`tvmtune_vta.clock.timeline` says where they
go, which takes Python a hundred times as long."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tvmtune.errors import TvmtuneError
from tvmtune_vta import clock
from tvmtune_vta.clock import Constants
from tvmtune_vta.config import Config
from tvmtune_vta.isa import Engine, Instruction
from tvmtune_vta.tokens import Queue

_ENGINES, _QUEUES = len(Engine), len(Queue)


def cycles(
    parts: Sequence[list[Instruction]], config: Config, constants: Constants | None = None
) -> int:
    """Those of the instructions of all ``parts``, one after another, as :func:`clock.timeline` counts
    them. What is the same list is looked at once.

    Raises :class:`TvmtuneError` for instructions that do not come to their end.
    """
    import tvm

    constants = constants or Constants.published()
    known: dict[int, list[npt.NDArray[np.int64]]] = {}
    for part in parts:
        if id(part) not in known:
            known[id(part)] = _rows(part, config, constants)
    engines = [np.concatenate([known[id(part)][e] for part in parts]) for e in range(_ENGINES)]
    edges = np.cumsum([0, *map(len, engines)]).astype(np.int64)
    table = np.concatenate(engines)
    lying = np.zeros((_QUEUES, len(table) + 1), np.int64)
    found = np.zeros(2, np.int64)
    result = tvm.runtime.tensor(found)
    _compiled()(*(tvm.runtime.tensor(array) for array in (table, edges, lying)), result)
    total, stuck = result.numpy().tolist()
    if stuck:
        raise TvmtuneError("the program does not come to its end: tokens are missing.")
    return int(total)


def _rows(
    part: list[Instruction], config: Config, constants: Constants
) -> list[npt.NDArray[np.int64]]:
    """For each engine its instructions: queues from which they take and to which they give, a bit for
    each, cycles at the port or -1, and cycles of work."""
    found: list[list[tuple[int, int, int, int]]] = [[] for _ in range(_ENGINES)]
    for index, instruction in enumerate(part):
        planned = clock.plan(index, instruction, config, constants)
        taken, given = (sum(1 << q for q in queues) for queues in (planned.pops, planned.pushes))
        found[planned.engine].append((taken, given, planned.turn, planned.work))
    return [np.array(rows, np.int64).reshape(-1, 4) for rows in found]


@functools.cache
def _compiled() -> Any:
    """``run(table, edges, lying, result)``: ``table`` int64 (n, 4) as :func:`_rows` has it, engine by
    engine, which begin at ``edges`` (int64, engines + 1); ``lying`` int64 (queues, n + 1) is room for
    tokens; ``result`` int64 (2,): cycles, and whether some instruction never began."""
    import tvm

    return tvm.compile(tvm.IRModule({"run": _engines()}), "llvm")["run"]


def _engines() -> Any:
    from tvm.script import tirx as T

    engines, queues = _ENGINES, _QUEUES

    @T.prim_func(s_tir=True)
    def run(table_: T.handle, edges_: T.handle, lying_: T.handle, result_: T.handle) -> None:
        count = T.int32()
        room = T.int32()
        table = T.match_buffer(table_, (count, 4), "int64")
        edges = T.match_buffer(edges_, (engines + 1,), "int64")
        lying = T.match_buffer(lying_, (queues, room), "int64")
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
                                at[0] = T.max(at[0], lying[q, head[q]])
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
                        lying[q, tail[q]] = free[first[0]]
                        tail[q] += 1
                next_[first[0]] += 1
            else:
                result[1] = T.int64(1)
        for e in range(engines):
            result[0] = T.max(result[0], free[e])

    return run
