"""What the session and a tuner say to each other (ask/tell)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from tvmtune.graph import traces
from tvmtune.records.identity import structure

if TYPE_CHECKING:
    import tvm
    from tvm.s_tir import Schedule

    from tvmtune.tuning.model import CostModel
    from tvmtune.tuning.transfer import Lesson
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
    """What a tuner gets to work with."""

    implementation: Implementation
    target: tvm.target.Target
    model: CostModel
    """Shared by all tasks of a session, so that one task's measurements help the next."""
    known: set[str]
    """Candidates measured already, in this run or an earlier one; never proposed again."""
    seed: int
    threads: int
    history: Sequence[Trial] = ()
    """Earlier trials of this implementation on this device, from the log."""
    relatives: Callable[[], Sequence[Any]] = tuple
    """Traces of the best candidates of other workloads, the most similar first. To be called for the
    first proposals: a tuner may be made before others have found what helps it."""
    lessons: Sequence[Lesson] = ()
    """Trials of other networks or devices, by workload."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The user's, out of those that the tuner's module lists in ``OPTIONS``."""


class Tuner(Protocol):
    """Proposes candidates of one implementation."""

    def ask(self, count: int, seconds: float | None = None) -> list[Proposal]:
        """At most ``count`` new candidates; none once the space is exhausted.

        ``seconds``: about how long it may take. Without, what is proposed depends on the seed and the
        results alone.
        """

    def tell(self, proposals: Sequence[Proposal], latencies: Sequence[float]) -> None:
        """How they did: seconds, infinity for a failure."""

    def revise(self, candidate: str, latency: float) -> None:
        """What it was told of a candidate, or found in the history, has changed: timed again, or found
        to give a wrong result (infinity)."""
