"""The cost model: gradient-boosted trees on program features, shared by a session's tasks.

A program has one feature row (164 numbers) for each place where it stores to a buffer; its score is
the sum over its rows, fitted to (best latency of the workload) / (latency), as in Ansor (Zheng et
al., OSDI 2020, section 5.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tvm.s_tir import Schedule

WARMUP = 40
"""Measurements before the model is asked at all; until then scores are random."""
GROWTH = 1.15
"""The model is fitted anew when the data has grown by this factor."""
ROUNDS = 80
PARAMS = {
    "max_depth": 8,
    "eta": 0.2,
    "gamma": 1e-3,
    "min_child_weight": 0,
    "verbosity": 0,
    "tree_method": "hist",
}


class CostModel:
    """Learns from measurements of all tasks and scores new candidates; higher is better."""

    def __init__(self, *, seed: int = 0, threads: int = 1) -> None:
        self.seed = seed
        self.threads = threads
        self.rng = np.random.RandomState(seed & 0x7FFFFFFF)
        self._rows: list[np.ndarray] = []
        self._latency: list[float] = []
        self._group: list[str] = []
        self._fitted = 0
        self._booster: Any = None
        self._proxy: Any = None
        self._extractor: Any = None

    def learn(
        self,
        context: Any,
        schedules: Sequence[Schedule],
        latencies: Sequence[float],
        workload: str,
    ) -> None:
        """Add measurements (seconds, infinity for failures) of one workload, by its key, and fit
        again if that is due. Only ratios within a workload are learnt."""
        for rows, latency in zip(self._features(context, schedules), latencies, strict=True):
            if len(rows):
                self._rows.append(rows)
                self._latency.append(latency)
                self._group.append(workload)
        if len(self._rows) >= max(WARMUP, GROWTH * self._fitted):
            self._fit()

    def score(self, context: Any, schedules: Sequence[Schedule]) -> np.ndarray:
        """One score a schedule, random while too little is known."""
        if self._booster is None:
            return self.rng.uniform(size=len(schedules))
        import xgboost

        rows = self._features(context, schedules)
        counts = [len(r) for r in rows]
        if not sum(counts):
            return self.rng.uniform(size=len(schedules))
        matrix = xgboost.DMatrix(np.concatenate(rows), nthread=self.threads)
        raw = self._booster.predict(matrix)
        owner = np.repeat(np.arange(len(rows)), counts)
        return np.bincount(owner, weights=raw, minlength=len(rows))

    def _fit(self) -> None:
        import xgboost

        counts = [len(r) for r in self._rows]
        owner = np.repeat(np.arange(len(counts)), counts)
        latency = np.array(self._latency)
        best: dict[str, float] = {}
        for group, seconds in zip(self._group, self._latency, strict=True):
            best[group] = min(seconds, best.get(group, float("inf")))
        wanted = np.array(
            [
                best[g] / s if np.isfinite(s) else 0.0
                for g, s in zip(self._group, latency, strict=True)
            ]
        )
        # What is quick has to be told apart; what is slow only has to be known as slow.
        weight = np.maximum(wanted, 1e-3)[owner]

        def objective(predicted: np.ndarray, _: Any) -> tuple[np.ndarray, np.ndarray]:
            total = np.bincount(owner, weights=predicted.ravel(), minlength=len(counts))
            return (total - wanted)[owner] * weight, weight

        matrix = xgboost.DMatrix(np.concatenate(self._rows), nthread=self.threads)
        self._booster = xgboost.train(
            {**PARAMS, "nthread": self.threads, "seed": self.seed, "base_score": 0.0},
            matrix,
            num_boost_round=ROUNDS,
            obj=objective,
        )
        self._fitted = len(self._rows)

    def _features(self, context: Any, schedules: Sequence[Schedule]) -> list[np.ndarray]:
        if not schedules:
            return []
        from tvm.s_tir import meta_schedule as ms

        if self._extractor is None:
            self._extractor = ms.feature_extractor.PerStoreFeature()
        candidates = [ms.MeasureCandidate(s, []) for s in schedules]
        tensors = self._extractor.extract_from(context, candidates)
        return [t.numpy().astype("float32") for t in tensors]

    def for_metaschedule(self) -> Any:
        """This model as the object that MetaSchedule's search asks for scores."""
        if self._proxy is None:
            from tvm.ir.utils import derived_object
            from tvm.s_tir import meta_schedule as ms

            model = self

            @derived_object
            class Proxy(ms.cost_model.PyCostModel):
                def load(self, path: str) -> None: ...

                def save(self, path: str) -> None: ...

                def update(self, context: Any, candidates: Any, results: Any) -> None: ...

                def predict(self, context: Any, candidates: Any) -> np.ndarray:
                    return model.score(context, [c.sch for c in candidates]).astype("float64")

            self._proxy = Proxy()
        return self._proxy
