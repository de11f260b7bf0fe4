"""Warm start: the best traces of similar workloads, with which a new search begins."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvmtune.records.schema import workload_module
from tvmtune.spaces import traces
from tvmtune.types import DEFAULT, SHIPPED, Device, Trial

if TYPE_CHECKING:
    import tvm

    from tvmtune.records.log import Log
    from tvmtune.tuning.state import ImplementationState, TaskState

MAX_CANDIDATES = 8
"""Candidates in total."""
PER_WORKLOAD = 2
"""Candidates per workload."""


@dataclass(frozen=True)
class LoopSignature:
    """The anchor block's loops: workloads with similar loops want similar schedules."""

    operator: str
    dtype: str
    kinds: tuple[int, ...]
    """TVM's number of each loop's type (spatial, reduction, ...)."""
    extents: tuple[int, ...]

    def distance(self, other: LoopSignature) -> tuple[bool, bool, float] | None:
        """Sort key: another operator, another dtype, sum of |log2| of the extents' ratios. None if the
        loops differ, so that decisions cannot be carried over."""
        if self.kinds != other.kinds:
            return None
        pairs = zip(self.extents, other.extents, strict=True)
        apart = sum(abs(math.log2(one / two)) for one, two in pairs)
        return self.operator != other.operator, self.dtype != other.dtype, apart


def loop_signature(mod: tvm.IRModule) -> LoopSignature | None:
    """None for a workload without an anchor block: its schedule has few decisions."""
    from tvm.s_tir.analysis import find_anchor_sblock

    block = find_anchor_sblock(mod)
    if block is None:
        return None
    return LoopSignature(
        operator=str(block.name_hint),
        dtype=str(block.writes[0].source.dtype),
        kinds=tuple(int(v.iter_type) for v in block.iter_vars),
        extents=tuple(max(1, int(v.dom.extent)) for v in block.iter_vars),
    )


@dataclass(frozen=True)
class _Source:
    implementation: str
    loop_signature: LoopSignature
    best: list[Trial]


class WarmStart:
    """Finds traces for a workload among a session's own tasks and other logs.

    Other logs contribute kernels for the same kind of target, except those of ``device`` itself for the
    same workload, which are transferred as records. Shipped records count as another device's.
    """

    def __init__(
        self, states: Sequence[TaskState], others: Sequence[Log], device: Device, kind: str
    ) -> None:
        self._states = states
        self._others = others
        self._device = device
        self._kind = kind
        self._sources: list[_Source] | None = None
        self._loop_signatures: dict[str, LoopSignature | None] = {}

    def of(self, impl: ImplementationState) -> list[Any]:
        """At most :data:`MAX_CANDIDATES` traces for the implementation, from the most similar workloads
        first."""
        mine = self._loop_signature(impl)
        if mine is None:
            return []
        if self._sources is None:
            self._sources = list(self._from_logs())
        similar = []
        for source in (*self._from_session(impl), *self._sources):
            apart = mine.distance(source.loop_signature)
            if apart is not None and source.implementation == impl.implementation.name:
                similar.append((apart, source))
        similar.sort(key=lambda pair: pair[0])
        return [trial.trace for _, source in similar for trial in source.best][:MAX_CANDIDATES]

    def _loop_signature(self, impl: ImplementationState) -> LoopSignature | None:
        key = impl.implementation.workload_key
        if key not in self._loop_signatures:
            try:
                self._loop_signatures[key] = loop_signature(impl.implementation.mod)
            except Exception:  # an unusual kernel is similar to no other
                self._loop_signatures[key] = None
        return self._loop_signatures[key]

    def _from_session(self, impl: ImplementationState) -> Iterator[_Source]:
        for state in self._states:
            for other in state.implementations:
                signature = self._loop_signature(other) if other.key != impl.key else None
                best = _best(other.trials)
                if signature is not None and best:
                    yield _Source(other.implementation.name, signature, best)

    def _from_logs(self) -> Iterator[_Source]:
        known = {impl.key for state in self._states for impl in state.implementations}
        for log in self._others:
            kinds = {i: d.get("target", {}).get("kind") for i, d in log.devices().items()}
            groups: dict[tuple[str, str, str], list[Trial]] = {}
            for trial in log.trials:
                mine = (trial.workload, trial.implementation) in known
                if (
                    trial.kind in (self._kind, SHIPPED)
                    and kinds.get(trial.device) == self._device.target.get("kind")
                    and not (mine and trial.device == self._device.identity())
                ):
                    key = (trial.device, trial.workload, trial.implementation)
                    groups.setdefault(key, []).append(trial)
            for (_, _, name), trials in groups.items():
                best, module = _best(trials), workload_module(log.tasks.get(trials[0].task), name)
                if best and module:
                    try:
                        signature = loop_signature(traces.load_module(module))
                    except Exception:  # skip a damaged or unusual workload
                        continue
                    if signature is not None:
                        yield _Source(name, signature, best)


def _best(trials: Sequence[Trial]) -> list[Trial]:
    """The best that a search found; default schedules need no warm start."""
    good = [t for t in trials if t.ok and t.tuner != DEFAULT]
    return sorted(good, key=lambda t: t.latency)[:PER_WORKLOAD]
