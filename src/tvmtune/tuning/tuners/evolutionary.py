"""``xgb``: evolutionary search, its proposals ranked by the cost model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmtune.graph import spaces, traces
from tvmtune.tuning.tuners.base import Proposal, Tuner, TunerArgs
from tvmtune.types import Trial

RESTORED = 48
"""Records of earlier runs that are replayed when a tuner starts: the best, which seed the evolution,
and as many again at random, from which the model learns what is slow."""

OPTIONS: dict[str, int | float] = {
    "population": 96,
    "generations": 2,
    "mutate": 0.85,
    "measured": 0.3,
    "epsilon": 0.1,
}
"""``--tuner-option``: schedules in a generation; generations per round; probability that one is mutated
in a generation; part of the first generation that stems from measured ones; part of a round that is
drawn at random instead of by the model."""


class EvolutionaryTuner:
    """MetaSchedule's evolutionary search with a population sized for small machines.

    The stock population of 512 over 4 generations spends 16 to 47 s on a batch of 32 candidates on
    two cores; this one spends 1 to 2 s on a batch of 16.
    """

    name = "xgb"

    def __init__(self, args: TunerArgs) -> None:
        from tvm.s_tir import meta_schedule as ms

        self.args = args
        mod = args.implementation.mod
        options = {**OPTIONS, **args.options}
        strategy = ms.search_strategy.EvolutionarySearch(
            population_size=options["population"],
            init_measured_ratio=options["measured"],
            init_min_unmeasured=max(1, options["population"] // 3),
            genetic_num_iters=options["generations"],
            genetic_mutate_prob=options["mutate"],
            genetic_max_fail_count=4,
            eps_greedy=options["epsilon"],
        )
        self.context = spaces.tune_context(
            mod,
            args.target,
            args.implementation.space.generator(),
            seed=args.seed,
            strategy=strategy,
            threads=args.threads,
        )
        self.database = ms.database.MemoryDatabase()
        self.workload = self.database.commit_workload(mod)
        self.designs = self.context.generate_design_space()
        self._restore(args.history)
        self._started: int | None = None

    def ask(self, count: int) -> list[Proposal]:
        proposals: list[Proposal] = []
        for _ in range(3):  # a batch may consist of known candidates only
            if len(proposals) >= count:
                break
            # A batch of one or two would often consist of known candidates only.
            self._start(max(8, count))
            candidates = self.context.generate_measure_candidates()
            if not candidates:
                break
            self.context.notify_runner_results(candidates, [_pending() for _ in candidates])
            for candidate in candidates:
                proposal = Proposal.of(candidate.sch)
                if proposal.candidate not in self.args.known and len(proposals) < count:
                    self.args.known.add(proposal.candidate)
                    proposals.append(proposal)
        return proposals

    def tell(self, proposals: Sequence[Proposal], latencies: Sequence[float]) -> None:
        self.args.model.learn(
            self.context,
            [p.schedule for p in proposals],
            latencies,
            self.args.implementation.workload_key,
        )
        for proposal, latency in zip(proposals, latencies, strict=True):
            if latency < float("inf"):
                self._commit(proposal.schedule, latency)

    def _start(self, count: int) -> None:
        if self._started == count:
            return
        if self._started is not None:
            self.context.post_tuning()
        self.context.pre_tuning(
            max_trials=1 << 30,
            num_trials_per_iter=count,
            design_spaces=self.designs,
            database=self.database,
            cost_model=self.args.model.for_metaschedule(),
        )
        self._started = count

    def _commit(self, schedule: Any, latency: float) -> None:
        from tvm.s_tir import meta_schedule as ms

        self.database.commit_tuning_record(
            ms.database.TuningRecord(
                schedule.trace,
                self.workload,
                [latency],
                self.args.target,
                ms.arg_info.ArgInfo.from_prim_func(self.args.implementation.mod["main"]),
            )
        )

    def _restore(self, history: Sequence[Trial]) -> None:
        import random

        good = sorted((t for t in history if t.ok), key=lambda t: t.latency)
        rest = good[RESTORED:]
        chosen = good[:RESTORED] + random.Random(self.args.seed).sample(
            rest, min(RESTORED, len(rest))
        )
        schedules, latencies = [], []
        for trial in chosen:
            try:
                schedules.append(traces.apply(self.args.implementation.mod, trial.trace))
            except Exception:  # a record that no longer applies teaches nothing
                continue
            latencies.append(trial.latency)
            self._commit(schedules[-1], trial.latency)
        if schedules:
            workload = self.args.implementation.workload_key
            self.args.model.learn(self.context, schedules, latencies, workload)


def _pending() -> Any:
    """The search counts results but does not read them: it takes what it needs from the database."""
    from tvm.s_tir import meta_schedule as ms

    return ms.runner.RunnerResult([1.0], None)


def create(args: TunerArgs) -> Tuner:
    return EvolutionaryTuner(args)
