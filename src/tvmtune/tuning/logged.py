"""Spaces out of a log: what was measured of each, and the space itself, rebuilt from the traces.

A log holds all that a simulation needs: its task lines carry the workloads, its trials the schedules
with what was sampled. Without the decisions, and without what TVM's post-processors added, the
traces of a space are its designs: sequences of instructions that sample.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvmtune.errors import TvmtuneError
from tvmtune.graph import intrinsics, rules, spaces, traces
from tvmtune.records import header
from tvmtune.records.identity import structure
from tvmtune.types import JSON, Implementation, Task, TensorSpec, Trial

if TYPE_CHECKING:
    import tvm
    from tvm.s_tir import Schedule
    from tvm.s_tir.meta_schedule.space_generator import SpaceGenerator

    from tvmtune.records.log import Log

DRAWS = 32
"""Points drawn at random to see whether a space was measured in full."""
FULL = 0.9
"""A space is measured in full if at least this part of the points that are asked for is in the log."""


class LoggedSpace:
    """Implements :class:`tvmtune.types.Space` by the instructions of recorded traces."""

    def __init__(self, recorded: Sequence[Trial], size: int, kind: str) -> None:
        # A trace is unpacked when it is asked for: not all of them at a time.
        each = (traces.design(trial.trace[0]) for trial in recorded)
        found = {json.dumps(instructions): instructions for instructions in each}
        self.designs: list[Any] = list(found.values())
        """Instructions of each design, as traces store them."""
        self.size: int | None = size
        self._kind = kind
        self._first = recorded[0].trace

    def generator(self) -> SpaceGenerator:
        from tvm.s_tir import Trace
        from tvm.s_tir.meta_schedule.space_generator import ScheduleFn

        intrinsics.load_for(self._kind)
        intrinsics.load_named(self._first[0])
        rules.register()

        def sample(sch: Schedule) -> list[Schedule]:
            made = []
            for instructions in self.designs:
                made.append(sch.copy())
                Trace.apply_json_to_schedule([instructions, []], made[-1])
            return made

        return ScheduleFn(sample, sch_rules=[])

    def default(self, mod: tvm.IRModule, target: tvm.target.Target) -> Schedule:
        """The first that was recorded."""
        return traces.apply(mod, self._first)


@dataclass
class Measured:
    """An implementation of a task on one device, with the latency of each candidate."""

    task: Task
    implementation: Implementation
    target: tvm.target.Target
    device: JSON
    """As the log's header describes it."""
    latency: dict[str, float]
    """Seconds by candidate, infinity for one that failed."""

    def __post_init__(self) -> None:
        self.size = len(self.latency)
        """Distinct candidates in the log."""
        self.best = min(self.latency.values())
        """Seconds; infinity if all failed."""
        self.failed = sum(1 for seconds in self.latency.values() if seconds == float("inf"))

    def within(self, part: float) -> int:
        """How many candidates are at least ``part`` times as fast as the best."""
        return sum(1 for seconds in self.latency.values() if seconds <= self.best / part)

    def __str__(self) -> str:
        return f"task {self.task.index} {self.task.name} ({self.implementation.name})"


def spaces_of(log: Log) -> list[Measured]:
    """The spaces that the log holds, in the order of their tasks; each device has its own.

    An implementation of which nothing but default schedules and records of other logs was measured is
    left out. Raises :class:`TvmtuneError` if nothing remains, for a log of another TVM, whose
    candidates have other digests, and for one that lacks its workloads.
    """
    header.check_tvm(
        log, "where candidates have other digests. Simulate it with the TVM of the log."
    )
    groups: dict[tuple[str, str, str, str], list[Trial]] = {}
    for trial in log.trials:
        # times of other devices, and modelled ones, are never ranked together
        group = (trial.task, trial.implementation, trial.device, trial.kind)
        groups.setdefault(group, []).append(trial)
    groups = {group: trials for group, trials in groups.items() if any(t.searched for t in trials)}
    if not groups:
        raise TvmtuneError(
            f"{log.path} holds no trials of a search: there is no space to simulate. Measure one with "
            "tvmtune tune FILE.py --tuner grid."
        )
    found = []
    tasks: dict[str, Task] = {}
    devices = log.devices()
    for (key, name, identity, _), trials in groups.items():
        try:
            line = log.tasks[key]
            task = tasks.setdefault(key, _task(line))
            found.append(_measured(task, line, name, devices[identity], trials))
        except Exception as error:  # KeyError, zlib's, TVM's: a log may hold anything
            raise TvmtuneError(
                f"{log.path} lacks what task {key} ({name}) is to be rebuilt from, or it is damaged "
                f"({type(error).__name__}: {_last_line(error)}). Restore the log, or measure anew."
            ) from error
    return sorted(found, key=lambda m: m.task.index)


def full(space: Measured) -> bool:
    """Whether at least :data:`FULL` of :data:`DRAWS` random points of the space are in the log."""
    import random

    from tvm.s_tir import Trace

    mod = space.implementation.mod
    generator = space.implementation.space.generator()
    context = spaces.tune_context(mod, space.target, generator, seed=1)
    designs = list(context.generate_design_space())
    postprocs = list(context.space_generator.postprocs)
    rng = random.Random(0)
    misses = 0
    for _ in range(DRAWS):
        trace = Trace(rng.choice(designs).trace.insts, {})
        sch = spaces.replay(mod, trace, postprocs, rng.randrange(1, 2**31))
        # what a post-processor refuses is no point of the space
        misses += sch is not None and structure(sch.mod) not in space.latency
        if misses > (1 - FULL) * DRAWS:
            return False
    return True


def _task(line: JSON) -> Task:
    """The task of a log's line; its implementations stand in :class:`Measured`."""
    return Task(
        index=line["index"],
        name=line["name"],
        key=line["task"],
        anchor_key=line["anchor"],
        weight=line["weight"],
        flop=line["flop"],
        args=tuple(TensorSpec("", tuple(shape), dtype) for shape, dtype in line["args"]),
        implementations=[],
    )


def _measured(task: Task, line: JSON, name: str, device: JSON, trials: Sequence[Trial]) -> Measured:
    import tvm

    part = next(i for i in line["implementations"] if i["name"] == name)
    target = tvm.target.Target(device["target"])
    latency: dict[str, float] = {}
    for trial in trials:
        before = latency.get(trial.candidate, float("inf"))
        latency[trial.candidate] = min(trial.latency, before)
    space = LoggedSpace(trials, len(latency), str(target.kind.name))
    mod = traces.load_module(part["module"])
    implementation = Implementation(
        name, part["workload"], mod, space, exact=part.get("exact", True)
    )
    return Measured(task, implementation, target, device, latency)


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[-1][:200]
