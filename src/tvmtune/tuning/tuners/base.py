"""The interface between a session and its tuners (ask/tell)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from tvmtune.passes.workload_keys import structure
from tvmtune.spaces import traces

if TYPE_CHECKING:
    import tvm
    from tvm.s_tir import Schedule

    from tvmtune.tuning.model import CostModel
    from tvmtune.tuning.space_points import PointSpace
    from tvmtune.tuning.transfer import TransferSample
    from tvmtune.types import Implementation, Trial


@dataclass
class Proposal:
    """A candidate: its schedule, the trace that a record stores, and its identity."""

    schedule: Schedule
    candidate: str
    trace: Any

    @staticmethod
    def of(schedule: Schedule) -> Proposal:
        return Proposal(schedule, structure(schedule.mod), traces.to_json(schedule))


@dataclass
class TunerArgs:
    """What a tuner is created with."""

    implementation: Implementation
    target: tvm.target.Target
    model: CostModel
    """Shared by all tasks of a session: one task's measurements help the next."""
    known: set[str]
    """Candidates measured in this run or an earlier one; never proposed again."""
    seed: int
    threads: int
    history: Sequence[Trial] = ()
    """Earlier trials of this implementation on this device, from the log."""
    warm_start: Callable[[], Sequence[Any]] = tuple
    """Traces of the best candidates of other workloads, the most similar first. Call it for the first
    proposals, not earlier: other tasks may find better ones meanwhile."""
    transfer_samples: Sequence[TransferSample] = ()
    """Trials of other networks or devices, by workload."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The user's values of options that the tuner's module lists in ``OPTIONS``."""
    point_space: Callable[..., PointSpace] | None = None
    """Constructor of its space; None for :class:`PointSpace` itself."""


class Tuner(Protocol):
    """Proposes candidates of one implementation."""

    def ask(self, count: int, seconds: float | None = None) -> list[Proposal]:
        """At most ``count`` new candidates; none once the space is exhausted.

        ``seconds``: about how long it may take. Without it, proposals depend only on the seed and the
        results.
        """

    def tell(self, proposals: Sequence[Proposal], latencies: Sequence[float]) -> None:
        """The results: seconds, infinity for a failure."""

    def revise(self, candidate: str, latency: float) -> None:
        """A candidate's earlier result has changed: it was timed again, or its output is wrong
        (infinity)."""
