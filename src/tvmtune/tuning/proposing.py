"""Proposes what to measure next: default schedules, then candidates of the scheduler's choice."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvmtune.errors import last_line
from tvmtune.machine import interrupts
from tvmtune.machine.cpu_count import usable_cpus
from tvmtune.spaces import traces
from tvmtune.tuning import scheduler, transfer
from tvmtune.tuning.limits import BATCH, SessionLimits
from tvmtune.tuning.model import CostModel
from tvmtune.tuning.observer import Observer
from tvmtune.tuning.options import TuneOptions
from tvmtune.tuning.round_times import Key, RoundTimes
from tvmtune.tuning.state import ImplementationState, SessionState, TaskState
from tvmtune.tuning.transfer import TransferSample
from tvmtune.tuning.tuners import create
from tvmtune.tuning.tuners.base import Proposal, Tuner, TunerArgs
from tvmtune.tuning.tuners.point_tuner import ENUMERABLE
from tvmtune.tuning.warm_start import WarmStart
from tvmtune.types import Device, Trial

if TYPE_CHECKING:
    from tvm.s_tir import Schedule


@dataclass(frozen=True)
class Candidate:
    """A proposal and the implementation it is for."""

    state: TaskState
    impl: ImplementationState
    proposal: Proposal


@dataclass(frozen=True)
class Round:
    """Proposals for one implementation."""

    state: TaskState
    impl: ImplementationState
    proposals: list[Proposal]
    seconds: float
    """Time for proposing during which no builder worked."""

    @property
    def candidates(self) -> list[Candidate]:
        return [Candidate(self.state, self.impl, p) for p in self.proposals]


class Proposer:
    """Proposes candidates for a session's tasks."""

    def __init__(
        self,
        session: SessionState,
        device: Device,
        limits: SessionLimits,
        times: RoundTimes,
        warm_start: WarmStart,
        observer: Observer,
        options: TuneOptions,
        peak: float | None,
        shipped_records: Mapping[Key, Trial],
    ) -> None:
        self.shipped_records = shipped_records
        """The shipped record of each implementation that has one."""
        self.model = CostModel(seed=options.seed)
        """Shared by all tasks."""
        self._transfer_samples: Sequence[TransferSample] = ()
        self._session = session
        self._device = device
        self._limits = limits
        self._times = times
        self._warm_start = warm_start
        self._observer = observer
        self._options = options
        self._peak = peak
        self._known: dict[str, set[str]] = {}
        self._unfittable: set[int] = set()
        """Cost models that were reported as not fittable."""
        self._target: Any = None

    def learn(self, samples: Sequence[TransferSample]) -> int:
        """Train the shared cost model, and later the tuners' own, with trials of other logs; returns
        how many the shared one could use."""
        self._transfer_samples = samples
        return transfer.train(self.model, samples, self.target, self._device.threads)

    @property
    def target(self) -> Any:
        if self._target is None:
            import tvm

            self._target = tvm.target.Target(self._device.target)
        return self._target

    def known(self, impl: ImplementationState) -> set[str]:
        """Candidates of its workload that were measured or proposed."""
        return self._known.setdefault(impl.implementation.workload_key, set())

    def defaults(self, waiting: list[tuple[TaskState, ImplementationState]]) -> list[Candidate]:
        """Default schedules of some implementations, which are removed from ``waiting``."""

        def schedule(impl: ImplementationState) -> Schedule:
            implementation = impl.implementation
            return implementation.space.default(implementation.mod, self.target)

        return self._given(waiting, schedule, "has no default schedule")

    def shipped(self, waiting: list[tuple[TaskState, ImplementationState]]) -> list[Candidate]:
        """The schedules that the shipped records have for some implementations, which are removed from
        ``waiting``."""

        def schedule(impl: ImplementationState) -> Schedule:
            return traces.apply(impl.implementation.mod, self.shipped_records[impl.key].trace)

        return self._given(waiting, schedule, "cannot use its shipped record")

    def _given(
        self,
        waiting: list[tuple[TaskState, ImplementationState]],
        schedule_of: Callable[[ImplementationState], Schedule],
        trouble: str,
    ) -> list[Candidate]:
        """Up to a batch of the schedules that ``schedule_of`` returns for ``waiting``, from which their
        implementations are removed. ``trouble`` reports that it raised."""
        candidates: list[Candidate] = []
        while waiting and len(candidates) < BATCH:
            interrupts.check()
            state, impl = waiting.pop(0)
            try:
                schedule = schedule_of(impl)
            except Exception as error:  # the tuner may still find a schedule
                interrupts.check()
                self._observer.noted(f"{_name(state, impl)} {trouble}: {last_line(error)}")
                continue
            proposal = Proposal.of(schedule)
            # A template may result in the same program as the direct implementation of its workload.
            if proposal.candidate not in self.known(impl):
                self.known(impl).add(proposal.candidate)
                candidates.append(Candidate(state, impl, proposal))
        return candidates

    def ask(self, busy: Sequence[Round] = ()) -> Round | None:
        """Proposals for the next round; None if there are none this time.

        While the rounds ``busy`` are being built, only if the next one is for another implementation.
        A new tuner is only created then and asked later, when it can use what others have found.
        """
        budget = self._limits.budget
        choice = scheduler.pick(
            self._options.scheduler,
            self._session.tasks,
            budget.per_task,
            self._peak,
            budget.task_patience,
        )
        if choice is None:
            if not busy:
                self._limits.nothing_left()
            return None
        state, impl = choice
        if any(impl is round.impl for round in busy):
            return None
        count = BATCH
        if budget.per_task is not None:
            count = min(count, budget.per_task - state.begun)
        begun = {round.impl.key: len(round.proposals) for round in busy}
        count = self._limits.batch(impl.key, count, begun)
        if not count:
            return None
        self._observer.proposing(state, impl)
        began = time.monotonic()
        try:
            if impl.tuner is None:
                impl.tuner = self._create_tuner(state, impl)
                if busy:
                    return None
            proposals = impl.tuner.ask(count, self._times.proposal_seconds(impl.key, count))
        except Exception as error:
            interrupts.check()
            # One implementation whose space cannot be searched must not end the session.
            reason = f"its space cannot be searched: {last_line(error)}"
            self.exhaust(state, impl, reason, report=True)
            return None
        self._report_unfittable(impl.tuner)
        if not proposals:
            impl.complete = _enumerated(impl)
            self.exhaust(state, impl, "its space holds no further candidate")
            return None
        return Round(state, impl, proposals, time.monotonic() - began)

    def exhaust(
        self, state: TaskState, impl: ImplementationState, reason: str, *, report: bool = False
    ) -> None:
        """Give the implementation no more trials; ``report``: even if the task has others."""
        impl.exhausted = True
        if all(i.exhausted for i in state.implementations):
            state.skipped = reason
            self._observer.skipped(state)
        elif report:
            self._observer.noted(f"{_name(state, impl)} is left out: {reason}")

    def _create_tuner(self, state: TaskState, impl: ImplementationState) -> Tuner:
        device, options = self._device, self._options
        return create(
            options.tuner,
            TunerArgs(
                implementation=impl.implementation,
                target=self.target,
                model=self.model,
                known=self.known(impl),
                seed=options.seed + 1 + state.task.index,
                threads=usable_cpus() if device.remote else device.threads,
                history=list(impl.trials),
                warm_start=lambda: self._warm_start.of(impl),
                transfer_samples=self._transfer_samples,
                options=options.tuner_options,
            ),
        )

    def _report_unfittable(self, tuner: Tuner) -> None:
        """Report each cost model that cannot be fitted, once."""
        for model in (self.model, getattr(tuner, "model", None)):
            if isinstance(model, CostModel) and model.note and id(model) not in self._unfittable:
                self._unfittable.add(id(model))
                self._observer.noted(f"the cost model proposes at random: {model.note}")


def _enumerated(impl: ImplementationState) -> bool:
    """Whether a tuner without further proposals has seen every point."""
    size = impl.implementation.space.size
    if size is None:
        size = getattr(impl.tuner, "size", None)
    return size is not None and size <= ENUMERABLE


def _name(state: TaskState, impl: ImplementationState) -> str:
    return f"{state.task.name} ({impl.implementation.name})"
