"""The loop: scheduler > tuner > builders > runner > log, until the budget is spent.

The session knows of the backend only what its hooks returned, and of the user only an observer that
it tells what happened. Each trial is on disk before the observer hears of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tvmtune import interrupt
from tvmtune.errors import TvmtuneError, last_line
from tvmtune.records.log import Log, LogWriter
from tvmtune.system import usable_cpus
from tvmtune.tuning import failures, scheduler, transfer
from tvmtune.tuning.budget import Budget
from tvmtune.tuning.drift import Drift
from tvmtune.tuning.leaders import Leaders
from tvmtune.tuning.limits import BATCH, Limits
from tvmtune.tuning.model import CostModel
from tvmtune.tuning.observer import Observer
from tvmtune.tuning.pace import Key, Pace
from tvmtune.tuning.relatives import Relatives
from tvmtune.tuning.state import Arm, TaskState, estimate
from tvmtune.tuning.tuners import check_options, create
from tvmtune.tuning.tuners.base import Proposal, Tuner, TunerArgs
from tvmtune.tuning.tuners.points import ENUMERABLE
from tvmtune.types import DEFAULT, Device, Task, Trial

if TYPE_CHECKING:
    from tvmtune.measure.measurer import Measurement, Measurer


INTERRUPTED = "it was interrupted"

_Candidate = tuple[TaskState, Arm, Proposal]


@dataclass(frozen=True)
class _Round:
    """Proposals for one implementation."""

    state: TaskState
    arm: Arm
    proposals: list[Proposal]
    asking: float
    """Seconds that proposing took while no builder worked."""


class Session:
    """Tunes ``tasks`` on ``device`` and writes every trial to ``log``.

    ``history`` holds the log's earlier trials of this device: they count towards the budget, are
    not measured again, and teach the cost model. ``others`` are other logs: their records of the
    same workloads on this device are taken over, without a trial; the others teach the models, as many
    as a short while allows, and the best are tried where a workload is similar. ``begun`` is when the
    time budget began, by :func:`time.monotonic`.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        device: Device,
        measurer: Measurer,
        log: LogWriter,
        *,
        budget: Budget,
        history: Sequence[Trial] = (),
        others: Sequence[Log] = (),
        tuner: str = "xgb",
        tuner_options: Mapping[str, Any] | None = None,
        scheduling: str = "effect",
        seed: int = 0,
        peak: float | None = None,
        observer: Observer | None = None,
        begun: float | None = None,
    ) -> None:
        self.device = device
        self.measurer = measurer
        self.log = log
        self.budget = budget
        self.tuner = tuner
        self.tuner_options = check_options(tuner, tuner_options or {})
        self.others = others
        self.scheduling = scheduler.check(scheduling)
        self.seed = seed
        self.peak = peak
        """The device's best rate in GFLOPS, if it is known."""
        self.observer = observer or Observer()
        self.begun = time.monotonic() if begun is None else begun
        self.model = CostModel(seed=seed)
        self.states = [TaskState(t, [Arm(i) for i in t.implementations]) for t in tasks]
        self.resumed = 0
        self.taken = 0
        """Records of other logs that were taken over, in this run or an earlier one."""
        self.taught = 0
        """Trials of other logs that the cost model was shown."""
        self.slowed = 0
        """Trials of this run that were measured while the machine was slow."""
        self.trials: list[Trial] = []
        """Of this log, earlier runs included, in the order in which they were measured."""
        self.drift = Drift(lambda: self.measurer.drift(), self._drifted)
        self.leaders = Leaders(
            self.states,
            measurer,
            log,
            self.observer,
            self.drift,
            lambda: self.elapsed,
            self._revised,
        )
        self._kind = measurer.runner.kind
        self._relatives = Relatives(self.states, others, device, self._kind)
        self._lessons: list[transfer.Lesson] = []
        self._pace = Pace()
        self.limits = Limits(budget, self.states, self.trials, self._pace, lambda: self.elapsed)
        self._known: dict[str, set[str]] = {}
        self._unfit: set[int] = set()
        """Cost models of which the user was told that they cannot be fitted."""
        self._target: Any = None
        self._take_over(history)

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
        return time.monotonic() - self.begun

    @property
    def stopped_because(self) -> str:
        """Empty while it runs, and if an error ended it."""
        return self.limits.reason

    def estimate(self) -> float:
        return estimate(self.states)

    def run(self) -> None:
        """Tune until a budget is spent or nothing is left to try.

        KeyboardInterrupt passes through; everything measured so far is in the log. Raises
        :class:`TvmtuneError` if too many trials fail.
        """
        self.observer.started(self)
        try:
            self._look_at_the_machine()
            self._learn_from_others()
            self.leaders.settle()  # an earlier run may have been killed before it checked these
            self._measure_defaults()
            ahead: _Round | None = None
            while not self.limits.reached():
                interrupt.check()
                self._look_at_the_machine()
                current = ahead or self._ask()
                ahead = self._measure_round(current) if current is not None else None
            if self.limits.seconds_left > 0:
                self._look_at_the_machine()
                self.leaders.settle(at_last=True)
        except KeyboardInterrupt:
            self.limits.reason = INTERRUPTED
            raise
        finally:
            self.observer.finished(self)

    def _measure_defaults(self) -> None:
        """First of all the default schedule of every implementation: an estimate in seconds, and the
        baseline that tuning has to beat."""
        states = sorted(self.states, key=lambda s: -s.task.weight * s.task.flop)
        waiting = [(s, arm) for s in states for arm in s.arms if not arm.trials]
        # every task before any second implementation, should the budget be that small
        waiting.sort(key=lambda entry: entry[1] is not entry[0].arms[0])
        batch: list[_Candidate] = []
        while (batch or waiting) and not self.limits.reached():
            began = time.monotonic()
            batch = batch or self._defaults(waiting)
            count = self.limits.batch(count=len(batch))
            if not batch or not count:
                break
            ahead: list[_Candidate] = []
            self._measure(batch[:count], DEFAULT, lambda: ahead.extend(self._defaults(waiting)))  # noqa: B023
            took = time.monotonic() - began
            self._pace.rounds.add({arm.key for _, arm, _ in batch[:count]}, count, took)
            batch = batch[count:] + ahead

    def _defaults(self, waiting: list[tuple[TaskState, Arm]]) -> list[_Candidate]:
        """Default schedules for some of the arms, which are taken off ``waiting``."""
        found: list[_Candidate] = []
        while waiting and len(found) < BATCH:
            interrupt.check()
            state, arm = waiting.pop(0)
            implementation = arm.implementation
            try:
                schedule = implementation.space.default(implementation.mod, self.target)
            except Exception as error:  # the tuner may still find one
                interrupt.check()
                self.observer.noted(
                    f"{_name(state, arm)} has no default schedule: {last_line(error)}"
                )
                continue
            proposal = Proposal.of(schedule)
            # A template may come to the same program as the direct implementation of its workload.
            if proposal.candidate not in self._known_of(arm):
                self._known_of(arm).add(proposal.candidate)
                found.append((state, arm, proposal))
        return found

    def _ask(self, busy: _Round | None = None) -> _Round | None:
        """Proposals for the next round; None if there are none this time.

        While ``busy`` is being measured, only if the next round is another implementation's. A new
        tuner is made then, but asked later: it begins with what others have found until then.
        """
        choice = scheduler.pick(
            self.scheduling,
            self.states,
            self.budget.per_task,
            self.peak,
            self.budget.task_patience,
        )
        if choice is None:
            if busy is None:
                self.limits.nothing_left()
            return None
        state, arm = choice
        if busy is not None and arm is busy.arm:
            return None
        count = BATCH
        if self.budget.per_task is not None:
            count = min(count, self.budget.per_task - state.begun)
        begun = {busy.arm.key: len(busy.proposals)} if busy else {}
        count = self.limits.batch(arm.key, count, begun)
        if not count:
            return None
        self.observer.proposing(state, arm)
        began = time.monotonic()
        try:
            if arm.tuner is None:
                arm.tuner = self._create_tuner(state, arm)
                if busy is not None:
                    return None
            proposals = arm.tuner.ask(count, self._pace.proposing(arm.key, count))
        except Exception as error:
            interrupt.check()
            # An implementation whose space cannot be searched must not end the others' session.
            self._exhaust(
                state, arm, f"its space cannot be searched: {last_line(error)}", tell=True
            )
            return None
        self._note(arm.tuner)
        if not proposals:
            arm.complete = _gone_through(arm)
            self._exhaust(state, arm, "its space holds no further candidate")
            return None
        return _Round(state, arm, proposals, time.monotonic() - began)

    def _measure_round(self, current: _Round) -> _Round | None:
        """Measure a round and learn from it; returns what was proposed while it was being built."""
        state, arm, proposals = current.state, current.arm, current.proposals
        assert arm.tuner is not None
        ahead: list[_Round] = []

        def meanwhile() -> None:
            found = self._ask(current)
            if found is not None:
                ahead.append(found)

        began = time.monotonic()
        arm.pending = len(proposals)
        try:
            trials, late = self._measure(
                [(state, arm, p) for p in proposals], self.tuner, meanwhile
            )
        finally:
            arm.pending = 0
        try:
            arm.tuner.tell(proposals, [trial.latency for trial in trials])
        except Exception as error:
            interrupt.check()
            self._exhaust(state, arm, f"its tuner failed: {last_line(error)}", tell=True)
        took = time.monotonic() - began - late + current.asking
        self._pace.rounds.add({arm.key}, len(proposals), took)
        if arm.hopeless(scheduler.GIVE_UP):
            stage, (_, message) = next(iter(failures.by_stage(arm.trials).items()))
            self._exhaust(
                state,
                arm,
                f"all of its {len(arm.trials)} candidates failed; first: {stage}: {message}",
                tell=True,
            )
        # What proposing took beyond the time in which the builders were busy anyway.
        return replace(ahead[0], asking=late) if ahead else None

    def _create_tuner(self, state: TaskState, arm: Arm) -> Tuner:
        return create(
            self.tuner,
            TunerArgs(
                implementation=arm.implementation,
                target=self.target,
                model=self.model,
                known=self._known_of(arm),
                seed=self.seed + 1 + state.task.index,
                threads=usable_cpus() if self.device.remote else self.device.threads,
                history=list(arm.trials),
                relatives=lambda: self._relatives.of(arm),
                lessons=self._lessons,
                options=self.tuner_options,
            ),
        )

    def _exhaust(self, state: TaskState, arm: Arm, reason: str, *, tell: bool = False) -> None:
        """The implementation gets no more trials; ``tell``: its user should know even if others of the
        task do."""
        arm.exhausted = True
        if all(a.exhausted for a in state.arms):
            state.skipped = reason
            self.observer.skipped(state)
        elif tell:
            self.observer.noted(f"{_name(state, arm)} is left out: {reason}")

    def _revised(self, arm: Arm, trial: Trial) -> None:
        """What is known of a candidate has changed."""
        if arm.tuner is not None:
            arm.tuner.revise(trial.candidate, trial.latency)

    def _measure(
        self, batch: list[_Candidate], tuner: str, meanwhile: Callable[[], None]
    ) -> tuple[list[Trial], float]:
        """Measure, log, show, then settle the new leaders; the trials in the order of the batch.

        ``meanwhile`` is called while the builders work; the seconds that it took longer than they are
        returned, too.
        """
        trials: list[Trial] = []
        mark = {"drift": round(self.drift.slowdown, 3)} if self.drift.slow else {}

        def on_result(index: int, result: Measurement) -> None:
            state, arm, proposal = batch[index]
            trial = Trial(
                task=state.task.key,
                implementation=arm.implementation.name,
                workload=arm.implementation.workload_key,
                candidate=proposal.candidate,
                trace=proposal.trace,
                seconds=list(result.seconds),
                error={"stage": result.stage, "message": result.message} if result.stage else None,
                tuner=tuner,
                kind=self._kind,
                time=time.time(),
                device=self.device.identity(),
                extra=dict(mark),
            )
            self.log.trial(trial)
            state.add(arm, trial)
            arm.pending = max(0, arm.pending - 1)
            self.trials.append(trial)
            self.slowed += bool(mark)
            trials.append(trial)
            self.observer.trial(state, trial)

        best = [
            s.best if s.best < float("inf") and a.best < float("inf") else None for s, a, _ in batch
        ]
        began = time.monotonic()
        building = self.measurer.build([(arm.implementation, p.trace) for _, arm, p in batch])
        meanwhile()
        late = building.idle()
        self.measurer.time(building, on_result, best=best)
        took = time.monotonic() - began - late
        self._pace.measuring.add({arm.key for _, arm, _ in batch}, len(batch), took)
        self.leaders.settle()
        reason = failures.too_many(
            self.trials[self.resumed :], self.states, self.budget.failure_rate
        )
        if reason:
            self.limits.reason = "too many trials failed"
            raise TvmtuneError(f"tuning was given up: {reason}")
        return trials, late

    def _look_at_the_machine(self) -> None:
        if self._kind == "measured":
            self.drift.look()

    def _drifted(self, ratio: float, changed: bool) -> None:
        self.log.append("drift", {"ratio": round(ratio, 4), "time": time.time()})
        if changed:
            self.observer.drifted(self.drift)

    def _note(self, tuner: Tuner) -> None:
        """Tell once of each cost model that it cannot be fitted."""
        for model in (self.model, getattr(tuner, "model", None)):
            if isinstance(model, CostModel) and model.note and id(model) not in self._unfit:
                self._unfit.add(id(model))
                self.observer.noted(f"the cost model proposes at random: {model.note}")

    def _take_over(self, history: Sequence[Trial]) -> None:
        arms = self._arms()
        for trial in history:
            state, arm = arms.get((trial.workload, trial.implementation), (None, None))
            if state is not None and arm is not None and trial.kind == self._kind:
                state.add(arm, trial)
                self._known_of(arm).add(trial.candidate)
                if trial.own:
                    self.trials.append(trial)
                else:
                    self.taken += 1
        self.resumed = len(self.trials)

    def _learn_from_others(self) -> None:
        """Take over what other logs know of the same workloads, and show the rest to the model."""
        if not self.others:
            return
        arms = self._arms()
        for trial in transfer.records(self.others, self.device.identity(), self._kind):
            state, arm = arms.get((trial.workload, trial.implementation), (None, None))
            if state is None or arm is None or trial.candidate in self._known_of(arm):
                continue
            trial.task = state.task.key
            self.log.trial(trial)
            state.add(arm, trial)
            self._known_of(arm).add(trial.candidate)
            self.taken += 1
        self._lessons = transfer.lessons(self.others, self._kind, self.seed)
        self.taught = transfer.teach(self.model, self._lessons, self.target, self.device.threads)
        self.observer.transferred(self)

    def _arms(self) -> dict[Key, tuple[TaskState, Arm]]:
        return {a.key: (s, a) for s in self.states for a in s.arms}

    def _known_of(self, arm: Arm) -> set[str]:
        return self._known.setdefault(arm.implementation.workload_key, set())

    @property
    def target(self) -> Any:
        if self._target is None:
            import tvm

            self._target = tvm.target.Target(self.device.target)
        return self._target


def _gone_through(arm: Arm) -> bool:
    """Whether a tuner that knows nothing more has seen every point."""
    size = arm.implementation.space.size
    if size is None:
        size = getattr(arm.tuner, "size", None)
    return size is not None and size <= ENUMERABLE


def _name(state: TaskState, arm: Arm) -> str:
    return f"{state.task.name} ({arm.implementation.name})"
