"""The loop: scheduler > tuner > builders > runner > log, until the budget is spent.

The session knows of the backend only what its hooks returned, and of the user only an observer that
it tells what happened. Each trial is on disk before the observer hears of it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvmtune import interrupt
from tvmtune.accuracy import tolerance
from tvmtune.records.log import Log, LogWriter
from tvmtune.tuning import scheduler, transfer
from tvmtune.tuning.model import CostModel
from tvmtune.tuning.observer import Observer
from tvmtune.tuning.state import Arm, TaskState, estimate
from tvmtune.tuning.tuners import check_options, create
from tvmtune.tuning.tuners.base import Proposal, TunerArgs
from tvmtune.types import Device, Task, Trial

if TYPE_CHECKING:
    from tvmtune.measure.measurer import Measurement, Measurer

BATCH = 16
"""Candidates per round; fewer while a task is still quick to improve would waste the search."""


@dataclass(frozen=True)
class Budget:
    """When to stop; None is no limit. ``trials`` counts those of earlier runs in the log too."""

    trials: int | None = None
    seconds: float | None = None
    per_task: int | None = None
    patience: int | None = None
    """Rounds over which the estimate has to improve by 1%."""


class Session:
    """Tunes ``tasks`` on ``device`` and writes every trial to ``log``.

    ``history`` holds the log's earlier trials of this device: they count towards the budget, are
    not measured again, and teach the cost model. ``others`` are other logs: their records of the
    same workloads on this device are taken over, without a trial; all their trials teach the model.
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
        self.model = CostModel(seed=seed, threads=device.threads)
        self.states = [TaskState(t, [Arm(i) for i in t.implementations]) for t in tasks]
        self.resumed = 0
        self.taken = 0
        """Records of other logs that were taken over, in this run or an earlier one."""
        self.taught = 0
        """Trials of other logs that the cost model was shown."""
        self.new = 0
        self.begun = time.monotonic()
        self.stopped_because = ""
        self.unchecked: dict[str, str] = {}
        """Leaders (by candidate) on which no verdict could be reached, with the reason."""
        self._known: dict[str, set[str]] = {}
        self._kind = measurer.runner.kind
        self._target: Any = None
        self._estimates: list[float] = []
        self._take_over(history)

    @property
    def total(self) -> int:
        """Trials of this network on this device, earlier runs included."""
        return self.resumed + self.new

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.begun

    def estimate(self) -> float:
        return estimate(self.states)

    def run(self) -> None:
        """Tune until a budget is spent or nothing is left to try.

        KeyboardInterrupt passes through; everything measured so far is in the log.
        """
        self.begun = time.monotonic()
        self.observer.started(self)
        try:
            self._learn_from_others()
            for state in self.states:  # an earlier run may have been killed before it checked these
                self._verify(state)
            self._measure_defaults()
            while not self._spent():
                interrupt.check()
                choice = scheduler.pick(
                    self.scheduling, self.states, self.budget.per_task, self.peak
                )
                if choice is None:
                    self.stopped_because = "nothing is left to try"
                    break
                self._round(*choice)
                self._estimates.append(self.estimate())
        finally:
            self.observer.finished(self)

    def _measure_defaults(self) -> None:
        """First of all the default schedule of every implementation: an estimate in seconds, and the
        baseline that tuning has to beat."""
        batch: list[tuple[TaskState, Arm, Proposal]] = []
        order = sorted(self.states, key=lambda s: -s.task.weight * s.task.flop)
        for state in order:
            for arm in state.arms:
                if arm.trials:
                    continue
                implementation = arm.implementation
                try:
                    schedule = implementation.space.default(implementation.mod, self.target)
                except Exception:  # the tuner may still find one
                    interrupt.check()
                    continue
                proposal = Proposal.of(schedule)
                self._known_of(arm).add(proposal.candidate)
                batch.append((state, arm, proposal))
        # every task before any second implementation, should the budget be that small
        batch.sort(key=lambda entry: entry[1] is not entry[0].arms[0])
        batch = batch[: self._left(len(batch))]
        for first in range(0, len(batch), BATCH):
            if first and self._spent():
                break
            self._measure(batch[first : first + BATCH], "default")

    def _round(self, state: TaskState, arm: Arm) -> None:
        self.observer.proposing(state, arm)
        count = self._left(BATCH)
        if self.budget.per_task is not None:
            count = min(count, self.budget.per_task - state.count)
        try:
            if arm.tuner is None:
                arm.tuner = create(
                    self.tuner,
                    TunerArgs(
                        implementation=arm.implementation,
                        target=self.target,
                        model=self.model,
                        known=self._known_of(arm),
                        seed=self.seed + 1 + state.task.index,
                        threads=self.device.threads,
                        history=list(arm.trials),
                        options=self.tuner_options,
                    ),
                )
            proposals = arm.tuner.ask(count)
        except Exception as error:
            interrupt.check()
            # An implementation whose space cannot be searched must not end the others' session.
            self._exhaust(state, arm, f"its space cannot be searched: {error}")
            return
        if not proposals:
            self._exhaust(state, arm, "its space holds no further candidate")
            return
        latencies = self._measure([(state, arm, p) for p in proposals], self.tuner)
        arm.tuner.tell(proposals[: len(latencies)], latencies)
        fails = [t for t in arm.trials if not t.ok]
        if len(fails) == len(arm.trials) >= scheduler.GIVE_UP:
            first = fails[0].error or {}
            self._exhaust(
                state,
                arm,
                f"all of its {len(fails)} candidates failed; first: "
                f"{first.get('stage')}: {first.get('message')}",
            )

    def _exhaust(self, state: TaskState, arm: Arm, reason: str) -> None:
        arm.exhausted = True
        if all(a.exhausted for a in state.arms):
            state.skipped = reason
            self.observer.skipped(state)

    def _measure(self, batch: list[tuple[TaskState, Arm, Proposal]], tuner: str) -> list[float]:
        """Measure, log, show, then verify the new leaders; latencies in the order of the batch."""
        latencies: list[float] = []

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
            )
            self.log.trial(trial)
            arm.add(trial)
            self.new += 1
            latencies.append(trial.latency)
            self.observer.trial(state, trial)

        best = [
            s.best if s.best < float("inf") and a.best < float("inf") else None for s, a, _ in batch
        ]
        self.measurer.measure(
            [(arm.implementation, p.trace) for _, arm, p in batch], on_result, best=best
        )
        for state in {id(s): s for s, _, _ in batch}.values():
            self._verify(state)
        return latencies

    def _verify(self, state: TaskState) -> None:
        """Check the leader; while it is wrong, demote it and check the next."""
        while (trial := state.leader) is not None and trial.verified is None:
            if trial.candidate in self.unchecked:
                return
            implementation = state.task.implementation(trial.implementation)
            allowed = tolerance(state.task.args[-1].dtype)
            error, message = self.measurer.verify(implementation, trial.trace)
            if error is None:
                self.unchecked[trial.candidate] = message
            else:
                trial.verified = error <= allowed
            if trial.verified is False:
                message = (
                    message or f"max|y - ref| / max|ref| is {error:.2e}, more than {allowed:g}"
                )
                trial.error = {"stage": "wrong-answer", "message": message}
            self.log.append(
                "verdict",
                {
                    "workload": trial.workload,
                    "candidate": trial.candidate,
                    "verified": trial.verified,
                    "deviation": "inf" if error == float("inf") else error,
                    "message": message,
                },
            )
            self.observer.verdict(state, trial)

    def _take_over(self, history: Sequence[Trial]) -> None:
        arms = self._arms()
        for trial in history:
            _, arm = arms.get((trial.workload, trial.implementation), (None, None))
            if arm is not None and trial.kind == self._kind:
                arm.add(trial)
                self._known_of(arm).add(trial.candidate)
                if trial.tuner == transfer.TUNER:
                    self.taken += 1
                else:
                    self.resumed += 1

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
            arm.add(trial)
            self._known_of(arm).add(trial.candidate)
            self.taken += 1
        found = transfer.lessons(self.others, self._kind, self.seed)
        self.taught = transfer.teach(self.model, found, self.target, self.device.threads)
        self.observer.transferred(self)

    def _arms(self) -> dict[tuple[str, str], tuple[TaskState, Arm]]:
        """By workload and implementation: a template is another space of the direct workload."""
        return {
            (a.implementation.workload_key, a.implementation.name): (s, a)
            for s in self.states
            for a in s.arms
        }

    def _known_of(self, arm: Arm) -> set[str]:
        return self._known.setdefault(arm.implementation.workload_key, set())

    def _left(self, most: int) -> int:
        if self.budget.trials is None:
            return most
        return max(0, min(most, self.budget.trials - self.total))

    def _spent(self) -> bool:
        budget = self.budget
        if budget.trials is not None and self.total >= budget.trials:
            self.stopped_because = f"the budget of {budget.trials} trials is spent"
        elif budget.seconds is not None and self.elapsed >= budget.seconds:
            self.stopped_because = f"the time budget of {budget.seconds:.0f} s is spent"
        elif budget.patience is not None and len(self._estimates) > budget.patience:
            before, now = self._estimates[-budget.patience - 1], self._estimates[-1]
            if before < float("inf") and now > 0.99 * before and self._explored():
                self.stopped_because = (
                    f"the estimate improved by less than 1% over {budget.patience} rounds"
                )
        return bool(self.stopped_because)

    def _explored(self) -> bool:
        """Whether the tasks that make up most of the latency have had a round of their own."""
        whole = self.estimate()
        heavy = [s for s in self.states if s.task.weight * s.best > 0.05 * whole]
        return all(s.count >= BATCH or s.skipped for s in heavy)

    @property
    def target(self) -> Any:
        if self._target is None:
            import tvm

            self._target = tvm.target.Target(self.device.target)
        return self._target
