"""The cost model: gradient-boosted trees that rank candidates by what was measured.

A candidate has one feature row or several, and its score is the sum over its rows, fitted to (best
latency of the workload) / (latency), as in Ansor (Zheng et al., OSDI 2020, section 5.2). Rows are of
two kinds: program features (164 numbers for each place where a program stores to a buffer), which mean
the same for all workloads, and the decisions of a point, which mean the same for workloads whose spaces
sample the same things.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tvm.s_tir import Schedule

LEAST = 8
"""Measurements before a model is fitted at all."""
GROWTH = 1.1
"""The model is fitted anew when the measurements of the workload in focus have grown by this factor."""
OTHERS_GROWTH = 1.5
"""Or all measurements by this one."""
OTHERS = 0.3
"""Weight of other workloads' measurements beside those of the workload in focus."""
MOST = 4000
"""Measurements that a model is fitted to; of more, the latest."""
ROUNDS = 80
PARAMS = {
    "max_depth": 8,
    "eta": 0.2,
    "gamma": 1e-3,
    "min_child_weight": 0,
    "verbosity": 0,
    "tree_method": "hist",
    # A fit takes 0.05 to 0.4 s; a second thread saves little, and spins where cores are shared.
    "nthread": 1,
}


class Lessons:
    """Measurements as rows of features, by workload."""

    def __init__(self) -> None:
        self.rows: list[np.ndarray] = []
        self.latency: list[float] = []
        self.group: list[str] = []
        self.changes = 0
        """How often a measurement that is known has been revised."""
        self._place: dict[tuple[str, str], int] = {}
        """By workload and candidate."""
        self._count: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.rows)

    def count(self, workload: str) -> int:
        """Measurements of one workload."""
        return self._count[workload]

    def add(
        self,
        rows: Sequence[np.ndarray],
        latencies: Sequence[float],
        workload: str,
        candidates: Sequence[str] = (),
    ) -> None:
        """``rows``: (places, columns) for each candidate; seconds, infinity for failures. Those whose
        names are given, too, can be revised."""
        for number, (each, latency) in enumerate(zip(rows, latencies, strict=True)):
            if len(each):
                if candidates:
                    self._place[workload, candidates[number]] = len(self.rows)
                self.rows.append(each)
                self.latency.append(latency)
                self.group.append(workload)
                self._count[workload] += 1

    def revise(self, workload: str, candidate: str, latency: float) -> None:
        """A measurement was corrected, or its result was found to be wrong (infinity)."""
        place = self._place.get((workload, candidate))
        if place is not None and self.latency[place] != latency:
            self.latency[place] = latency
            self.changes += 1


class CostModel:
    """Scores candidates; higher is better, and random while too little is known.

    ``focus``: the workload whose candidates are scored; measurements of others count less.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        lessons: Lessons | None = None,
        focus: str | None = None,
    ) -> None:
        self.seed = seed
        self.lessons = Lessons() if lessons is None else lessons
        self.focus = focus
        self.note: str | None = None
        """Why it cannot be fitted, if so; scores are random then."""
        self._rng = np.random.RandomState(seed & 0x7FFFFFFF)
        self._shared: dict[str, Lessons] = {}
        self._fitted = (0, 0)
        """Measurements in focus, and of all, that the model has seen."""
        self._revised = 0
        self._booster: Any = None
        self._extractor: Any = None

    def of_points(self, signature: str, workload: str) -> CostModel:
        """A model on decisions for ``workload``, which also learns from others of this signature."""
        lessons = self._shared.setdefault(signature, Lessons())
        return CostModel(seed=self.seed, lessons=lessons, focus=workload)

    def learn(
        self,
        rows: Sequence[np.ndarray],
        latencies: Sequence[float],
        workload: str,
        candidates: Sequence[str] = (),
    ) -> None:
        """Add measurements (seconds, infinity for failures) of one workload, by its key. Only ratios
        within a workload are learnt. ``candidates``: their names, if they may be revised later."""
        self.lessons.add(rows, latencies, workload, candidates)

    def revise(self, workload: str, candidate: str, latency: float) -> None:
        """Correct what was learnt of a candidate; see :meth:`Lessons.revise`."""
        self.lessons.revise(workload, candidate, latency)

    def score(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        """One score for each candidate's rows."""
        counts = [len(each) for each in rows]
        self._fit_if_due()
        if self._booster is None or not sum(counts):
            return self._rng.uniform(size=len(rows))
        raw = self._booster.inplace_predict(np.concatenate(rows))
        owner = np.repeat(np.arange(len(rows)), counts)
        return np.bincount(owner, weights=raw, minlength=len(rows))

    @property
    def ready(self) -> bool:
        """Whether scores mean anything."""
        self._fit_if_due()
        return self._booster is not None

    def features(self, context: Any, schedules: Sequence[Schedule]) -> list[np.ndarray]:
        """The program features of each schedule: (stores, 164) float32."""
        if not schedules:
            return []
        from tvm.s_tir import meta_schedule as ms

        if self._extractor is None:
            self._extractor = ms.feature_extractor.PerStoreFeature()
        candidates = [ms.MeasureCandidate(s, []) for s in schedules]
        tensors = self._extractor.extract_from(context, candidates)
        return [t.numpy().astype("float32") for t in tensors]

    def _fit_if_due(self) -> None:
        known = len(self.lessons)
        own = known if self.focus is None else self.lessons.count(self.focus)
        fitted, whole = self._fitted
        grown = own >= max(GROWTH * fitted, fitted + 1) or known >= OTHERS_GROWTH * max(whole, 1)
        if known < LEAST or not (grown or self.lessons.changes != self._revised):
            return
        self._fitted, self._revised = (own, known), self.lessons.changes
        wanted, counts, rows, weight = self._data()
        if not wanted.any():
            self.note = f"none of the {known} candidates measured so far works"
            return
        try:
            self._booster = self._train(wanted, counts, rows, weight)
            self.note = None
        except Exception as error:  # whatever XGBoost dislikes must not end the session
            self.note = f"XGBoost cannot be fitted: {str(error).splitlines()[0][:200]}"
            self._booster = None

    def _data(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(score wanted, rows) of each candidate, all rows, weight of each candidate."""
        lessons = self.lessons
        latency = np.array(lessons.latency[-MOST:])
        groups = lessons.group[-MOST:]
        best: dict[str, float] = {}
        for group, seconds in zip(lessons.group, lessons.latency, strict=True):
            best[group] = min(seconds, best.get(group, float("inf")))
        finite = np.isfinite(latency)
        wanted = np.zeros(len(latency))
        top = np.array([best[g] for g in groups])
        wanted[finite] = top[finite] / latency[finite]
        # What is quick has to be told apart; what is slow only has to be known as slow.
        weight = np.maximum(wanted, 0.02)
        if self.focus is not None:
            weight *= np.array([1.0 if g == self.focus else OTHERS for g in groups])
        rows = lessons.rows[-MOST:]
        return wanted, np.array([len(r) for r in rows]), np.concatenate(rows), weight

    def _train(
        self, wanted: np.ndarray, counts: np.ndarray, rows: np.ndarray, weight: np.ndarray
    ) -> Any:
        import xgboost

        owner = np.repeat(np.arange(len(counts)), counts)

        def objective(predicted: np.ndarray, _: Any) -> tuple[np.ndarray, np.ndarray]:
            total = np.bincount(owner, weights=predicted.ravel(), minlength=len(counts))
            return (total - wanted)[owner] * weight[owner], weight[owner]

        return xgboost.train(
            {**PARAMS, "seed": self.seed, "base_score": 0.0},
            xgboost.DMatrix(rows, nthread=1),
            num_boost_round=ROUNDS,
            obj=objective,
        )
