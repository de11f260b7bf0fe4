"""Spaces from a log: their measurements, and the space itself, rebuilt from the traces.

A log contains all that a simulation needs: its task lines the workloads, its trials the schedules with
their decisions. Without the decisions and the post-processors' instructions, the traces of a space are
its designs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvmtune.errors import TvmtuneError, last_line
from tvmtune.passes.workload_keys import structure
from tvmtune.records import header, schema
from tvmtune.spaces import rule_space, rules, tensor_intrinsics, traces
from tvmtune.types import JSON, Implementation, Task, Trial

if TYPE_CHECKING:
    import tvm
    from tvm.s_tir import Schedule
    from tvm.s_tir.meta_schedule.space_generator import SpaceGenerator

    from tvmtune.records.log import Log

COMPLETENESS_DRAWS = 32
"""Random points that decide whether a space was measured completely."""
MIN_COVERAGE = 0.9
"""Fraction of the requested points that a log of a completely measured space must contain."""


class LoggedSpace:
    """Implements :class:`tvmtune.types.Space` with the instructions of recorded traces."""

    def __init__(self, recorded: Sequence[Trial], size: int, kind: str) -> None:
        # Unpack one trace at a time.
        each = (traces.design(trial.trace[0]) for trial in recorded)
        distinct = {json.dumps(instructions): instructions for instructions in each}
        self.designs: list[Any] = list(distinct.values())
        """Instructions of each design, as traces store them."""
        self.size: int | None = size
        self._kind = kind
        self._first = recorded[0].trace

    def generator(self) -> SpaceGenerator:
        from tvm.s_tir import Trace
        from tvm.s_tir.meta_schedule.space_generator import ScheduleFn

        tensor_intrinsics.load_for(self._kind)
        tensor_intrinsics.load_named(self._first[0])
        rules.register()

        def sample(sch: Schedule) -> list[Schedule]:
            made = []
            for instructions in self.designs:
                made.append(sch.copy())
                Trace.apply_json_to_schedule([instructions, []], made[-1])
            return made

        return ScheduleFn(sample, sch_rules=[])

    def default(self, mod: tvm.IRModule, target: tvm.target.Target) -> Schedule:
        """The first recorded schedule."""
        return traces.apply(mod, self._first)


@dataclass
class MeasuredSpace:
    """An implementation of a task on one device, with the latency of each candidate."""

    task: Task
    implementation: Implementation
    target: tvm.target.Target
    device: JSON
    """Its description in the log's header."""
    latency: dict[str, float]
    """Seconds by candidate, infinity for failures."""

    def __post_init__(self) -> None:
        self.size = len(self.latency)
        """Distinct candidates in the log."""
        self.best = min(self.latency.values())
        """Seconds; infinity if all failed."""
        self.failed = sum(1 for seconds in self.latency.values() if seconds == float("inf"))

    def within(self, part: float) -> int:
        """Number of candidates with at least ``part`` of the best one's speed."""
        return sum(1 for seconds in self.latency.values() if seconds <= self.best / part)

    def __str__(self) -> str:
        return f"task {self.task.index} {self.task.name} ({self.implementation.name})"


def spaces_of(log: Log) -> list[MeasuredSpace]:
    """The spaces of the log in the order of their tasks, separately for each device.

    Implementations with nothing but default schedules and transferred records are omitted. Raises
    :class:`TvmtuneError` if nothing remains, for a log of another TVM, whose candidates have other
    digests, and for one that lacks its workloads.
    """
    header.check_tvm(
        log, "where candidates have other digests. Simulate it with the TVM of the log."
    )
    groups: dict[tuple[str, str, str, str], list[Trial]] = {}
    for trial in log.trials:
        # never rank times of different devices, or measured and modelled ones, together
        group = (trial.task, trial.implementation, trial.device, trial.kind)
        groups.setdefault(group, []).append(trial)
    groups = {group: trials for group, trials in groups.items() if any(t.searched for t in trials)}
    if not groups:
        raise TvmtuneError(
            f"{log.path} holds no trials of a search: there is no space to simulate. Measure one with "
            "tvmtune tune FILE.py --tuner grid."
        )
    spaces = []
    tasks: dict[str, Task] = {}
    devices = log.devices()
    for (key, name, identity, _), trials in groups.items():
        try:
            line = log.tasks[key]
            task = tasks.setdefault(key, schema.parse_task(line))
            spaces.append(_measured(task, line, name, devices[identity], trials))
        except Exception as error:  # KeyError, errors of zlib or TVM: a log may contain anything
            raise TvmtuneError(
                f"{log.path} lacks data to rebuild task {key} ({name}), or is damaged "
                f"({type(error).__name__}: {last_line(error)}). Restore the log, or measure again."
            ) from error
    return sorted(spaces, key=lambda m: m.task.index)


def is_complete(space: MeasuredSpace) -> bool:
    """Whether at least :data:`MIN_COVERAGE` of :data:`COMPLETENESS_DRAWS` random points of the space
    are in the log."""
    import random

    from tvm.s_tir import Trace

    mod = space.implementation.mod
    generator = space.implementation.space.generator()
    context = rule_space.tune_context(mod, space.target, generator, seed=1)
    designs = list(context.generate_design_space())
    postprocs = list(context.space_generator.postprocs)
    rng = random.Random(0)
    misses = 0
    for _ in range(COMPLETENESS_DRAWS):
        trace = Trace(rng.choice(designs).trace.insts, {})
        sch = rule_space.replay(mod, trace, postprocs, rng.randrange(1, 2**31))
        # a point that a post-processor rejects is not part of the space
        misses += sch is not None and structure(sch.mod) not in space.latency
        if misses > (1 - MIN_COVERAGE) * COMPLETENESS_DRAWS:
            return False
    return True


def _measured(
    task: Task, line: JSON, name: str, device: JSON, trials: Sequence[Trial]
) -> MeasuredSpace:
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
    return MeasuredSpace(task, implementation, target, device, latency)
