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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tvm.s_tir import Schedule

LEAST = 8
"""Measurements before a model is fitted at all."""
GROWTH = 1.1
"""The model is fitted anew when the measurements of the workload in focus have grown by this factor."""
OTHERS_GROWTH = 1.5
"""What it expects before it knows any is fitted anew when those of others have grown by this one."""
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

    ``focus``: the workload whose candidates are scored. Measurements of others then give what is to be
    expected, and those of the workload itself correct it: what is known of it is not outvoted, however
    much is known of others.
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
        self._own = _Fit()
        self._others = _Fit()
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
        if not self._fitted or not sum(counts):
            return self._rng.uniform(size=len(rows))
        raw = self._raw(np.concatenate(rows))
        owner = np.repeat(np.arange(len(rows)), counts)
        return np.bincount(owner, weights=raw, minlength=len(rows))

    @property
    def ready(self) -> bool:
        """Whether scores mean anything."""
        self._fit_if_due()
        return self._fitted

    @property
    def _fitted(self) -> bool:
        return self._own.booster is not None or self._others.booster is not None

    def _raw(self, rows: np.ndarray) -> np.ndarray:
        """The part of each row in its candidate's score."""
        raw = np.zeros(len(rows))
        for fit in (self._others, self._own):
            if fit.booster is not None:
                raw += fit.booster.inplace_predict(rows)
        return raw

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
        lessons = self.lessons
        own = len(lessons) if self.focus is None else lessons.count(self.focus)
        others = len(lessons) - own
        if self._others.due(others, lessons.changes, OTHERS_GROWTH):
            self._fit(self._others, [n for n, g in enumerate(lessons.group) if g != self.focus])
            self._own.known = 0  # it corrects another expectation now
        if self._own.due(own, lessons.changes, GROWTH):
            of_mine = (n for n, g in enumerate(lessons.group) if self.focus in (None, g))
            self._fit(self._own, list(of_mine))

    def _fit(self, fit: _Fit, places: Sequence[int]) -> None:
        """Fit to the lessons at ``places``, which hold all of a workload's."""
        fit.known, fit.changes = len(places), self.lessons.changes
        wanted, counts, rows = self._data(places)
        if not wanted.any():
            if fit is self._own:
                self.note = f"none of the {len(places)} candidates measured so far works"
            return
        expected = np.zeros(len(rows))
        if fit is self._own and self._others.booster is not None:
            expected = self._others.booster.inplace_predict(rows)
        try:
            fit.booster = self._train(wanted, counts, rows, expected)
            self.note = None
        except Exception as error:  # whatever XGBoost dislikes must not end the session
            self.note = f"XGBoost cannot be fitted: {str(error).splitlines()[0][:200]}"
            fit.booster = None

    def _data(self, places: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(score wanted, number of rows) of each candidate, and all rows; of the latest lessons."""
        lessons = self.lessons
        best: dict[str, float] = {}
        for n in places:
            group = lessons.group[n]
            best[group] = min(lessons.latency[n], best.get(group, float("inf")))
        latest = places[-MOST:]
        latency = np.array([lessons.latency[n] for n in latest])
        top = np.array([best[lessons.group[n]] for n in latest])
        finite = np.isfinite(latency)
        wanted = np.zeros(len(latency))
        wanted[finite] = top[finite] / latency[finite]
        rows = [lessons.rows[n] for n in latest]
        return wanted, np.array([len(r) for r in rows]), np.concatenate(rows)

    def _train(
        self, wanted: np.ndarray, counts: np.ndarray, rows: np.ndarray, expected: np.ndarray
    ) -> Any:
        import xgboost

        owner = np.repeat(np.arange(len(counts)), counts)
        # What is quick has to be told apart; what is slow only has to be known as slow.
        weight = np.maximum(wanted, 0.02)

        def objective(predicted: np.ndarray, _: Any) -> tuple[np.ndarray, np.ndarray]:
            total = np.bincount(owner, weights=predicted.ravel(), minlength=len(counts))
            return (total - wanted)[owner] * weight[owner], weight[owner]

        return xgboost.train(
            {**PARAMS, "seed": self.seed, "base_score": 0.0},
            xgboost.DMatrix(rows, base_margin=expected, nthread=1),
            num_boost_round=ROUNDS,
            obj=objective,
        )


@dataclass
class _Fit:
    """Trees, and what they were fitted to."""

    booster: Any = None
    known: int = 0
    """Measurements."""
    changes: int = 0
    """Of :class:`Lessons`."""

    def due(self, known: int, changes: int, growth: float) -> bool:
        """Whether ``known`` measurements, of which some may have been revised, ask for another fit."""
        if known < LEAST:
            return False
        return known >= max(growth * self.known, self.known + 1) or changes != self.changes
