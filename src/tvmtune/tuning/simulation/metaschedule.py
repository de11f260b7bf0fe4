"""``metaschedule``: MetaSchedule's own search, unmodified, for comparison in a simulation.

EvolutionarySearch and XGBModel with their defaults, driven in batches of 64 as by ``ms.tune_tasks``. It
is not available in sessions, where it would spend four fifths of the time proposing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from tvmtune.errors import TvmtuneError, last_line
from tvmtune.machine import interrupts
from tvmtune.spaces import rule_space
from tvmtune.tuning.tuners.base import Proposal, Tuner, TunerArgs

NAME = "metaschedule"
BATCH = 64
"""``num_trials_per_iter`` of ``ms.tune_tasks``."""


class MetaScheduleTuner:
    """One task of ``ms.tune_tasks`` as ask and tell."""

    batch = BATCH

    def __init__(self, args: TunerArgs) -> None:
        import numpy as np
        from tvm.s_tir import meta_schedule as ms

        self.args = args
        mod = args.implementation.mod
        self.context = rule_space.tune_context(
            mod,
            args.target,
            args.implementation.space.generator(),
            seed=args.seed,
            strategy=ms.search_strategy.EvolutionarySearch(),
            threads=args.threads,
        )
        self.database = ms.database.MemoryDatabase()
        self.workload = self.database.commit_workload(mod)
        self.model = ms.cost_model.XGBModel(num_tuning_cores=args.threads, tree_method="auto")
        # Until it is fitted, the model takes its scores from NumPy's global generator.
        self._random = np.random.RandomState(args.seed).get_state()
        self._candidates: dict[str, Any] = {}
        self.context.pre_tuning(
            max_trials=1 << 30,
            num_trials_per_iter=BATCH,
            design_spaces=self.context.generate_design_space(),
            database=self.database,
            cost_model=self.model,
        )

    def ask(self, count: int, seconds: float | None = None) -> list[Proposal]:
        """A batch of the search's own size, whatever ``count`` is; empty once it has given up."""
        try:
            with self._own_random():
                candidates = self.context.generate_measure_candidates()
                while candidates is not None and not len(
                    candidates
                ):  # an empty batch: it tries again
                    candidates = self.context.generate_measure_candidates()
        except Exception as error:  # its mutators do not support every template
            interrupts.check()
            reason = last_line(error)
            raise TvmtuneError(
                f"MetaSchedule's own search fails on this space: {reason}. Omit --tuner {NAME}."
            ) from error
        proposals = [Proposal.of(c.sch) for c in candidates or ()]
        self._candidates = dict(
            zip((p.candidate for p in proposals), candidates or (), strict=True)
        )
        return proposals

    def revise(self, candidate: str, latency: float) -> None:
        """MetaSchedule's search cannot correct results."""

    def tell(self, proposals: Sequence[Proposal], latencies: Sequence[float]) -> None:
        from tvm.s_tir import meta_schedule as ms

        candidates = [self._candidates[p.candidate] for p in proposals]
        results = []
        for candidate, seconds in zip(candidates, latencies, strict=True):
            failed = seconds == float("inf")
            results.append(
                ms.runner.RunnerResult(None, "failed")
                if failed
                else ms.runner.RunnerResult([seconds], None)
            )
            self.database.commit_tuning_record(
                ms.database.TuningRecord(
                    candidate.sch.trace,
                    self.workload,
                    [1e10 if failed else seconds],  # as the stock callback stores a failure
                    self.args.target,
                    candidate.args_info,
                )
            )
        with self._own_random():
            self.model.update(self.context, candidates, results)
        self.context.notify_runner_results(candidates, results)

    @contextlib.contextmanager
    def _own_random(self) -> Iterator[None]:
        import numpy as np

        before = np.random.get_state()
        np.random.set_state(self._random)
        try:
            yield
        finally:
            self._random = np.random.get_state()
            np.random.set_state(before)


def create(args: TunerArgs) -> Tuner:
    return MetaScheduleTuner(args)
