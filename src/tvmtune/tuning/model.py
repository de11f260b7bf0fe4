"""The cost model: gradient-boosted trees that rank candidates.

A candidate has one feature row or several, and its score is the sum over its rows, fitted to (best
latency of the workload) / (latency), as in Ansor (Zheng et al., OSDI 2020, section 5.2). Rows are of
two kinds: program features (164 numbers for each place where a program stores to a buffer), which mean
the same for all workloads, and the decisions of a point, which mean the same for workloads whose spaces
have the same knobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.errors import last_line

if TYPE_CHECKING:
    from tvm.s_tir import Schedule

MIN_SAMPLES = 8
"""Measurements before a model is fitted."""
GROWTH = 1.1
"""The model is refitted when the measurements of the workload in focus have grown by this factor."""
OTHERS_GROWTH = 1.5
"""The prior from other workloads is refitted when their measurements have grown by this factor."""
MAX_SAMPLES = 4000
"""Measurements that a model is fitted to, the latest ones."""
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


class TrainingSet:
    """Measurements as rows of features, by workload."""

    def __init__(self) -> None:
        self.rows: list[np.ndarray] = []
        self.latency: list[float] = []
        self.group: list[str] = []
        self.changes = 0
        """How often a measurement has been revised."""
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
        """``rows``: (places, columns) for each candidate; ``latencies``: seconds, infinity for
        failures; ``candidates``: names, if results may be revised later."""
        for number, (each, latency) in enumerate(zip(rows, latencies, strict=True)):
            if len(each):
                if candidates:
                    self._place[workload, candidates[number]] = len(self.rows)
                self.rows.append(each)
                self.latency.append(latency)
                self.group.append(workload)
                self._count[workload] += 1

    def revise(self, workload: str, candidate: str, latency: float) -> None:
        """Correct a measurement; infinity if the output turned out to be wrong."""
        place = self._place.get((workload, candidate))
        if place is not None and self.latency[place] != latency:
            self.latency[place] = latency
            self.changes += 1


class CostModel:
    """Scores candidates: higher is better, random while too little is known.

    ``focus``: the workload whose candidates are scored. Measurements of other workloads are then the
    prior, which its own measurements correct: however many others there are, they do not outvote its
    own.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        training_set: TrainingSet | None = None,
        focus: str | None = None,
    ) -> None:
        self.seed = seed
        self.training_set = TrainingSet() if training_set is None else training_set
        self.focus = focus
        self.note: str | None = None
        """Why it cannot be fitted, if so; scores are then random."""
        self._rng = np.random.RandomState(seed & 0x7FFFFFFF)
        self._shared: dict[str, TrainingSet] = {}
        self._own = _Fit()
        self._others = _Fit()
        self._extractor: Any = None

    def of_points(self, signature: str, workload: str) -> CostModel:
        """A model of decisions for ``workload``, which also learns from others with this signature."""
        shared = self._shared.setdefault(signature, TrainingSet())
        return CostModel(seed=self.seed, training_set=shared, focus=workload)

    def learn(
        self,
        rows: Sequence[np.ndarray],
        latencies: Sequence[float],
        workload: str,
        candidates: Sequence[str] = (),
    ) -> None:
        """Add measurements (seconds, infinity for failures) of one workload, by its key. Only ratios
        within a workload are learned. ``candidates``: their names, if they may be revised later."""
        self.training_set.add(rows, latencies, workload, candidates)

    def revise(self, workload: str, candidate: str, latency: float) -> None:
        """Correct a measurement; see :meth:`TrainingSet.revise`."""
        self.training_set.revise(workload, candidate, latency)

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
        """Each row's contribution to its candidate's score."""
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
        samples = self.training_set
        own = len(samples) if self.focus is None else samples.count(self.focus)
        others = len(samples) - own
        if self._others.due(others, samples.changes, OTHERS_GROWTH):
            self._fit(self._others, [n for n, g in enumerate(samples.group) if g != self.focus])
            self._own.known = 0  # the prior that it corrects has changed
        if self._own.due(own, samples.changes, GROWTH):
            of_mine = (n for n, g in enumerate(samples.group) if self.focus in (None, g))
            self._fit(self._own, list(of_mine))

    def _fit(self, fit: _Fit, places: Sequence[int]) -> None:
        """Fit to the measurements at ``places``, which include all of a workload or none."""
        fit.known, fit.changes = len(places), self.training_set.changes
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
        except Exception as error:  # an error of XGBoost must not end the session
            self.note = f"XGBoost cannot be fitted: {last_line(error)}"
            fit.booster = None

    def _data(self, places: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(score wanted, number of rows) of each candidate, and all rows; of the latest samples."""
        samples = self.training_set
        best: dict[str, float] = {}
        for n in places:
            group = samples.group[n]
            best[group] = min(samples.latency[n], best.get(group, float("inf")))
        latest = places[-MAX_SAMPLES:]
        latency = np.array([samples.latency[n] for n in latest])
        top = np.array([best[samples.group[n]] for n in latest])
        finite = np.isfinite(latency)
        wanted = np.zeros(len(latency))
        wanted[finite] = top[finite] / latency[finite]
        rows = [samples.rows[n] for n in latest]
        return wanted, np.array([len(r) for r in rows]), np.concatenate(rows)

    def _train(
        self, wanted: np.ndarray, counts: np.ndarray, rows: np.ndarray, expected: np.ndarray
    ) -> Any:
        import xgboost

        owner = np.repeat(np.arange(len(counts)), counts)
        # Fast candidates must be told apart; for slow ones it is enough to know that they are slow.
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
    """Trees, and the measurements they were fitted to."""

    booster: Any = None
    known: int = 0
    """Measurements."""
    changes: int = 0
    """Of :class:`TrainingSet`."""

    def due(self, known: int, changes: int, growth: float) -> bool:
        """Whether a new fit is due for ``known`` measurements, some of which may have been revised."""
        if known < MIN_SAMPLES:
            return False
        return known >= max(growth * self.known, self.known + 1) or changes != self.changes
