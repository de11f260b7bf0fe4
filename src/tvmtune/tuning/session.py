"""The tuning loop: scheduler > tuner > builders > runner > log, until the budget is spent.

The session knows of the backend only what its hooks returned, and of the user only an observer. Each
trial is on disk before the observer receives it.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tvmtune.errors import TvmtuneError, last_line
from tvmtune.machine import interrupts
from tvmtune.records import schema
from tvmtune.records.log import Log, LogWriter
from tvmtune.tuning import failures, scheduler, transfer
from tvmtune.tuning.clock import Clock
from tvmtune.tuning.drift import Drift
from tvmtune.tuning.incumbents import FINAL_CONFIRM_SHARE, Incumbents, Revision
from tvmtune.tuning.limits import BATCH, SessionLimits
from tvmtune.tuning.observer import Observer
from tvmtune.tuning.options import TuneOptions
from tvmtune.tuning.proposing import Candidate, Proposer, Round
from tvmtune.tuning.round_times import RoundTimes
from tvmtune.tuning.state import SessionState, TaskState
from tvmtune.tuning.warm_start import WarmStart
from tvmtune.types import DEFAULT, SHIPPED, Device, Task, Trial

if TYPE_CHECKING:
    from tvmtune.measure.measurer import Batch, Measurement, Measurer


INTERRUPTED = "it was interrupted"
MOST_NAMES = 5
"""Tasks that a message lists by name."""


@dataclass(frozen=True)
class _Building:
    """Candidates that are being built."""

    candidates: Sequence[Candidate]
    builds: Batch
    began: float

    @property
    def keys(self) -> set[tuple[str, str]]:
        return {c.impl.key for c in self.candidates}


class TuningSession:
    """Tunes ``tasks`` on ``device`` and writes every trial to ``log``.

    ``history`` holds the log's earlier trials on this device: they count towards the budget, are not
    measured again, and train the cost model. ``others`` are other logs: their records of the same
    workloads on this device are transferred without a trial; as many of the rest as a short time allows
    train the models, and the best warm-start similar workloads. So do the records of ``shipped``
    (:mod:`tvmtune.records.shipped`); those of the same workloads are measured after the default
    schedules. ``begun`` is when the time budget began, by :func:`time.monotonic`. Implements
    :class:`tvmtune.tuning.observer.SessionView`.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        device: Device,
        measurer: Measurer,
        log: LogWriter,
        options: TuneOptions,
        *,
        history: Sequence[Trial] = (),
        others: Sequence[Log] = (),
        shipped: Log | None = None,
        peak: float | None = None,
        observer: Observer | None = None,
        begun: float | None = None,
    ) -> None:
        self.device = device
        self.measurer = measurer
        self.log = log
        self.budget = options.budget.with_defaults()
        self.others = others
        self.peak = peak
        """The device's peak rate in GFLOPS, if known."""
        self.observer = observer or Observer()
        self.clock = Clock(begun)
        self.state = SessionState([TaskState.of(task) for task in tasks])
        self.resumed = 0
        """Trials of earlier runs."""
        self.transferred_records = 0
        """Records from other logs, in this run or an earlier one."""
        self.transferred_samples = 0
        """Trials of other logs that trained the cost model."""
        self.slow_trials = 0
        """Trials of this run that were measured while the machine was slow."""
        self.drift = Drift()
        self.incumbents = Incumbents(
            self.state, measurer, log, self.observer, self.drift, self.clock
        )
        self.times = RoundTimes()
        self.limits = SessionLimits(self.budget, self.state, self.times, self.clock)
        self._options = options
        self._kind = measurer.runner.kind
        self._ahead = 1 + measurer.slots // BATCH if measurer.builds_ahead else 0
        """Batches that are being built besides the next to be measured: builders should have work while
        that one waits for its slowest build, which may take ten times as long as the others."""
        self._measured = 0.0
        """When the last batch was measured."""
        self._proposer = Proposer(
            self.state,
            device,
            self.limits,
            self.times,
            WarmStart(self.state.tasks, [*others, *filter(None, [shipped])], device, self._kind),
            self.observer,
            options,
            peak,
            transfer.shipped_records(shipped, self.state.by_key()),
        )
        self._restore(history)

    @property
    def states(self) -> list[TaskState]:
        return self.state.tasks

    @property
    def trials(self) -> list[Trial]:
        """Of this log, earlier runs included, in the order in which they were measured."""
        return self.state.trials

    @property
    def new(self) -> int:
        """Trials of this run."""
        return len(self.trials) - self.resumed

    @property
    def total(self) -> int:
        """Trials of this network on this device, earlier runs included."""
        return len(self.trials)

    @property
    def elapsed(self) -> float:
        """Seconds since the session began."""
        return self.clock.elapsed

    @property
    def space_size(self) -> int | None:
        """Points of all spaces together, if known."""
        return self.limits.space_size

    @property
    def speed_spread(self) -> float:
        """Fraction by which the machine's slowest speed reading exceeds the fastest."""
        return self.drift.spread

    @property
    def unverified(self) -> Mapping[str, str]:
        """Incumbents (by candidate) whose check reached no verdict, with the reason."""
        return self.incumbents.unverified

    @property
    def unconfirmed(self) -> Sequence[str]:
        """Names of the tasks that matter, whose best time may be due to chance or to the machine."""
        return [state.task.name for state in self.incumbents.unconfirmed()]

    @property
    def stopped_because(self) -> str:
        """Empty while it runs, and if an error ended it."""
        return self.limits.reason

    def estimate(self) -> float:
        """Sum of weight x best latency in seconds; infinite while a task has no valid trial."""
        return self.state.estimate()

    def run(self) -> None:
        """Tune until a budget is spent or nothing is left to try.

        KeyboardInterrupt passes through; everything measured so far is in the log. Raises
        :class:`TvmtuneError` if too many trials fail.
        """
        self.observer.started(self)
        try:
            self._check_drift()
            self._transfer()
            self._confirm()  # an earlier run may have been killed before it checked its incumbents
            self._measure_defaults()
            self._measure_shipped()
            self._search()
            self._check_drift()
            self._confirm(at_last=True)
            self._report_unconfirmed()
        except KeyboardInterrupt:
            self.limits.reason = INTERRUPTED
            raise
        finally:
            self.observer.finished(self)

    def _measure_defaults(self) -> None:
        """Measure the default schedule of every implementation: an estimate within seconds, and the
        baseline that tuning must beat. A log of an earlier version may hold another default."""
        states = sorted(self.states, key=lambda s: -s.task.weight * s.task.flop)
        limit = self.limits.budget.per_task
        waiting = [
            (s, impl)
            for s in states
            for impl in s.implementations
            if not impl.trials or limit is None or s.begun < limit
        ]
        # Every task before any second implementation, in case the budget is that small. First comes
        # the one that compile would take anyway.
        waiting.sort(key=lambda entry: entry[1].implementation is not entry[0].task.untuned)
        self._measure_given(lambda: self._proposer.defaults(waiting), DEFAULT)

    def _measure_shipped(self) -> None:
        """Measure the schedules that other CPUs of this class ran fastest with."""
        records = self._proposer.shipped_records
        waiting = [
            (state, impl)
            for state in self.states
            for impl in state.implementations
            if impl.key in records and not any(t.tuner == SHIPPED for t in impl.trials)
        ]
        waiting.sort(key=lambda entry: -entry[0].task.weight * entry[0].task.flop)
        if waiting:
            tasks = len({id(state) for state, _ in waiting})
            self.observer.noted(
                f"{tasks} of {len(self.states)} tasks have a shipped record, to start from"
            )
        self._measure_given(lambda: self._proposer.shipped(waiting), SHIPPED)

    def _measure_given(self, propose: Callable[[], list[Candidate]], tuner: str) -> None:
        """Measure what ``propose`` returns until it returns nothing."""
        candidates: list[Candidate] = []
        waiting: deque[_Building] = deque()
        while not self.limits.reached():
            began = time.monotonic()
            while len(waiting) <= self._ahead and not (waiting and waiting[0].builds.idle()):
                candidates = candidates or propose()
                begun = Counter(c.impl.key for each in waiting for c in each.candidates)
                count = self.limits.batch(count=len(candidates), begun=begun)
                if not count:
                    break
                waiting.append(self._build(candidates[:count]))
                candidates = candidates[count:]
            if not waiting:
                break
            if not self._ahead:
                candidates += propose()
            building = waiting.popleft()
            self._measure(building, tuner)
            self.times.rounds.add(building.keys, len(building.candidates), time.monotonic() - began)
        for building in waiting:
            self.measurer.drop(building.builds)

    def _search(self) -> None:
        """Measure rounds until a limit is reached."""
        rounds: deque[tuple[Round, _Building]] = deque()
        """Those being built."""
        ahead: Round | None = None
        while not self.limits.reached():
            interrupts.check()
            self._check_drift()
            current = ahead or (None if rounds else self._proposer.ask())
            if current is not None:
                rounds.append(self._start(current))
            ahead = self._measure_round(rounds) if rounds else None
        for dropped, building in rounds:
            self.measurer.drop(building.builds)
            dropped.impl.pending = 0

    def _start(self, proposed: Round) -> tuple[Round, _Building]:
        """Start building a round."""
        proposed.impl.pending = len(proposed.proposals)
        return proposed, self._build(proposed.candidates)

    def _measure_round(self, rounds: deque[tuple[Round, _Building]]) -> Round | None:
        """Measure the first of the rounds being built and tell its tuner. Meanwhile further ones are
        proposed and started; returns one that was proposed, but has to wait."""
        began = time.monotonic()
        ahead = self._proposer.ask([each for each, _ in rounds])
        while ahead is not None and len(rounds) <= self._ahead:
            # This round includes the time for proposing it.
            rounds.append(self._start(replace(ahead, seconds=0.0)))
            ahead = None
            if len(rounds) <= self._ahead:
                ahead = self._proposer.ask([each for each, _ in rounds])
        current, building = rounds.popleft()
        state, impl, proposals = current.state, current.impl, current.proposals
        assert impl.tuner is not None
        try:
            trials, late = self._measure(building, self._options.tuner)
        finally:
            impl.pending = 0
        try:
            impl.tuner.tell(proposals, [trial.latency for trial in trials])
        except Exception as error:
            interrupts.check()
            reason = f"its tuner failed: {last_line(error)}"
            self._proposer.exhaust(state, impl, reason, report=True)
        took = time.monotonic() - began - late + current.seconds
        self.times.rounds.add({impl.key}, len(proposals), took)
        if impl.all_failed(scheduler.GIVE_UP):
            stage, (_, message) = next(iter(failures.by_stage(impl.trials).items()))
            reason = f"all of its {len(impl.trials)} candidates failed; first: {stage}: {message}"
            self._proposer.exhaust(state, impl, reason, report=True)
        # The time for proposing beyond that in which the builders were busy anyway.
        return replace(ahead, seconds=late) if ahead else None

    def _build(self, candidates: Sequence[Candidate]) -> _Building:
        """Start building; each batch must be passed to :meth:`_measure` or dropped."""
        began = time.monotonic()
        builds = self.measurer.build(
            [(c.impl.implementation, c.proposal.trace) for c in candidates]
        )
        return _Building(candidates, builds, began)

    def _measure(self, building: _Building, tuner: str) -> tuple[list[Trial], float]:
        """Time, log, report, then confirm the new incumbents.

        Returns the trials in the order of the candidates, and for how many seconds the builders have
        already been idle.
        """
        trials: dict[int, Trial] = {}
        mark = {"drift": round(self.drift.slowdown, 3)} if self.drift.slow else {}

        def on_result(index: int, result: Measurement) -> None:
            candidate = building.candidates[index]
            state, impl = candidate.state, candidate.impl
            trial = self.log.trial(
                Trial(
                    task=state.task.key,
                    implementation=impl.implementation.name,
                    workload=impl.implementation.workload_key,
                    candidate=candidate.proposal.candidate,
                    trace=candidate.proposal.trace,
                    seconds=list(result.seconds),
                    error=(
                        {"stage": result.stage, "message": result.message} if result.stage else None
                    ),
                    tuner=tuner,
                    kind=self._kind,
                    time=time.time(),
                    device=self.device.identity(),
                    extra=mark,
                )
            )
            self.state.add(state, impl, trial)
            impl.pending = max(0, impl.pending - 1)
            self.slow_trials += bool(mark)
            trials[index] = trial
            self.observer.trial(state, trial)

        # The latency in seconds that each must come near to deserve all its repeats.
        best = [
            c.state.best if c.state.best < float("inf") and c.impl.best < float("inf") else None
            for c in building.candidates
        ]
        # Where batches are built ahead, the builders had other work.
        late = 0.0 if self._ahead else building.builds.idle()
        self.measurer.time(building.builds, on_result, best=best)
        began, self._measured = max(building.began, self._measured), time.monotonic()
        took = self._measured - began - late
        self.times.measuring.add(building.keys, len(building.candidates), took)
        revised = {(r.trial.workload, r.trial.candidate): r.trial for r in self._confirm()}
        reason = failures.too_many(
            self.trials[self.resumed :], self.states, self.budget.failure_rate
        )
        if reason:
            self.limits.reason = "too many trials failed"
            raise TvmtuneError(f"tuning was given up: {reason}")
        measured = [trials[index] for index in sorted(trials)]
        return [revised.get((t.workload, t.candidate), t) for t in measured], late

    def _confirm(self, *, at_last: bool = False) -> Sequence[Revision]:
        """Confirm the incumbents and tell their tuners what has changed."""
        budget = float("inf") if self.budget.seconds is None else self.budget.seconds
        revisions = self.incumbents.confirm(at_last=at_last, end=budget)
        self.limits.reserved = self.incumbents.seconds_to_confirm(budget)
        for revision in revisions:
            if revision.implementation.tuner is not None:
                trial = revision.trial
                revision.implementation.tuner.revise(trial.candidate, trial.latency)
        return revisions

    def _report_unconfirmed(self) -> None:
        """Name the tasks whose best time has not been confirmed, and why."""
        names = self.unconfirmed
        if not names:
            return
        if self.drift.slow:
            why = "the machine is slower than before"
        elif self.limits.seconds_left <= self.limits.reserved:
            why = "the time budget is spent"
        else:
            why = f"that would take more than {FINAL_CONFIRM_SHARE:.0%} of the run"
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        times = "Its best time" if len(names) == 1 else "Their best times"
        self.observer.noted(
            f"not timed again, because {why}: {', '.join(names[:MOST_NAMES])}{more}. {times} may be "
            "too low by chance"
        )

    def _check_drift(self) -> None:
        if self._kind != "measured":
            return
        reading = self.drift.look(self.measurer.drift)
        if reading is not None:
            self.log.write(schema.drift(reading.ratio))
            if reading.changed:
                self.observer.drifted(self.drift.slow, self.drift.slowdown)

    def _restore(self, history: Iterable[Trial]) -> None:
        """Take over the trials of earlier runs."""
        by_key = self.state.by_key()
        for trial in history:
            state, impl = by_key.get((trial.workload, trial.implementation), (None, None))
            if state is not None and impl is not None and trial.kind == self._kind:
                self.state.add(state, impl, trial)
                self._proposer.known(impl).add(trial.candidate)
                self.transferred_records += not trial.own
        self.resumed = len(self.trials)

    def _transfer(self) -> None:
        """Transfer records of the same workloads from other logs, and train the cost model with the
        rest."""
        if not self.others:
            return
        by_key = self.state.by_key()
        for trial in transfer.records(self.others, self.device.identity(), self._kind):
            state, impl = by_key.get((trial.workload, trial.implementation), (None, None))
            if state is None or impl is None or trial.candidate in self._proposer.known(impl):
                continue
            self.state.add(state, impl, self.log.trial(trial.evolve(task=state.task.key)))
            self._proposer.known(impl).add(trial.candidate)
            self.transferred_records += 1
        samples = transfer.samples(self.others, self._kind, self._options.seed)
        self.transferred_samples = self._proposer.learn(samples)
        self.observer.transferred(self)
