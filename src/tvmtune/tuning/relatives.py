"""The best candidates of other workloads, the most similar first: where a new search may begin."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvmtune.graph import traces
from tvmtune.records.log import module_of
from tvmtune.types import DEFAULT, Device, Trial

if TYPE_CHECKING:
    import tvm

    from tvmtune.records.log import Log
    from tvmtune.tuning.state import Arm, TaskState

MOST = 8
EACH = 2
"""Candidates in all, and of one workload."""


@dataclass(frozen=True)
class Nature:
    """What makes the schedules of two workloads alike: the loops of the block that decides."""

    operator: str
    dtype: str
    kinds: tuple[int, ...]
    """Of each loop: TVM's number for spatial, reduction, ..."""
    extents: tuple[int, ...]

    def distance(self, other: Nature) -> tuple[bool, bool, float] | None:
        """To sort by: another operator, another dtype, sum of |log2| of the extents' ratios. None
        where the loops differ, so that no decision of the one means anything in the other."""
        if self.kinds != other.kinds:
            return None
        pairs = zip(self.extents, other.extents, strict=True)
        apart = sum(abs(math.log2(one / two)) for one, two in pairs)
        return self.operator != other.operator, self.dtype != other.dtype, apart


def nature(mod: tvm.IRModule) -> Nature | None:
    """None for a workload without an anchor block, whose schedule has little to decide."""
    from tvm.s_tir.analysis import find_anchor_sblock

    block = find_anchor_sblock(mod)
    if block is None:
        return None
    return Nature(
        operator=str(block.name_hint),
        dtype=str(block.writes[0].source.dtype),
        kinds=tuple(int(v.iter_type) for v in block.iter_vars),
        extents=tuple(max(1, int(v.dom.extent)) for v in block.iter_vars),
    )


@dataclass(frozen=True)
class _Donor:
    implementation: str
    nature: Nature
    best: list[Trial]


class Relatives:
    """Finds traces for a workload among a session's own tasks and ``others``.

    Of other logs only kernels for the same kind of target count, and not those of ``device`` itself
    for the same workload: these are taken over as records.
    """

    def __init__(
        self, states: Sequence[TaskState], others: Sequence[Log], device: Device, kind: str
    ) -> None:
        self._states = states
        self._others = others
        self._device = device
        self._kind = kind
        self._donors: list[_Donor] | None = None
        self._natures: dict[str, Nature | None] = {}

    def of(self, arm: Arm) -> list[Any]:
        """At most :data:`MOST` traces for the arm's implementation, the most similar first."""
        mine = self._nature(arm)
        if mine is None:
            return []
        if self._donors is None:
            self._donors = list(self._from_logs())
        found = []
        for donor in (*self._from_session(arm), *self._donors):
            apart = mine.distance(donor.nature)
            if apart is not None and donor.implementation == arm.implementation.name:
                found.append((apart, donor))
        found.sort(key=lambda pair: pair[0])
        return [trial.trace for _, donor in found for trial in donor.best][:MOST]

    def _nature(self, arm: Arm) -> Nature | None:
        key = arm.implementation.workload_key
        if key not in self._natures:
            try:
                self._natures[key] = nature(arm.implementation.mod)
            except Exception:  # an odd kernel is like no other
                self._natures[key] = None
        return self._natures[key]

    def _from_session(self, arm: Arm) -> Iterator[_Donor]:
        for state in self._states:
            for other in state.arms:
                its = self._nature(other) if other.key != arm.key else None
                best = _best(other.trials)
                if its is not None and best:
                    yield _Donor(other.implementation.name, its, best)

    def _from_logs(self) -> Iterator[_Donor]:
        known = {arm.key for state in self._states for arm in state.arms}
        for log in self._others:
            kinds = {i: d.get("target", {}).get("kind") for i, d in log.devices().items()}
            groups: dict[tuple[str, str, str], list[Trial]] = {}
            for trial in log.trials:
                mine = (trial.workload, trial.implementation) in known
                if (
                    trial.kind == self._kind
                    and kinds.get(trial.device) == self._device.target.get("kind")
                    and not (mine and trial.device == self._device.identity())
                ):
                    key = (trial.device, trial.workload, trial.implementation)
                    groups.setdefault(key, []).append(trial)
            for (_, _, name), trials in groups.items():
                best, module = _best(trials), module_of(log.tasks.get(trials[0].task), name)
                if best and module:
                    try:
                        its = nature(traces.load_module(module))
                    except Exception:  # of no use, and no harm to the session
                        continue
                    if its is not None:
                        yield _Donor(name, its, best)


def _best(trials: Sequence[Trial]) -> list[Trial]:
    """Those that a search found; a default schedule is there without one."""
    good = [t for t in trials if t.ok and t.tuner != DEFAULT]
    return sorted(good, key=lambda t: t.latency)[:EACH]
