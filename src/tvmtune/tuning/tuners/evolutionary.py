"""``xgb`` and ``xgb-knob``: evolution of points under a cost model on their decisions.

Points are evolved by the thousand, because the model needs no program for its score. Those that it
likes best are replayed; ``xgb`` ranks the programs once more by their features, with a model that all
tasks of the session share, and proposes the best; ``xgb-knob`` proposes them as they are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from tvmtune.tuning.points import Point
from tvmtune.tuning.tuners.base import Proposal, Tuner, TunerArgs
from tvmtune.tuning.tuners.points import PointTuner

OPTIONS: dict[str, int | float] = {
    "population": 512,
    "generations": 3,
    "parents": 64,
    "mutate": 0.6,
    "epsilon": 0.1,
    "replays": 3,
}
"""``--tuner-option``: points in a generation; generations per round; the best of one that bring forth
the next; probability that a child is changed beyond its parents; part of a round that is drawn at
random instead of by the model; programs that are looked at for each that is measured (``xgb``)."""
WARMUP = 16
"""Measurements of a workload before its own model is trusted, where no other workload helps."""


class KnobTuner(PointTuner):
    """The model sees decisions only."""

    name = "xgb-knob"

    def __init__(self, args: TunerArgs) -> None:
        super().__init__(args)
        self.options = {**OPTIONS, **args.options}
        self.workload = args.implementation.workload_key
        self.model = args.model.of_points(self.points.signature, self.workload)
        self._teach(list(self.measured.items()), self.workload)
        self._study()
        adapted = [self.points.adapt(trace) for trace in args.relatives]
        self._first = [p for p in adapted if p is not None]
        """Points that are good elsewhere: tried before anything else."""

    def suggest(self, count: int) -> Iterator[Point]:
        while self._first:
            yield self._first.pop(0)
        if len(self.measured) < WARMUP and not self._informed():
            yield from self._around_best()
        chance = float(self.options["epsilon"])
        for point in self._evolved():
            if self.rng.random() < chance:
                yield self.points.draw(self.rng)
            yield point

    def tell(self, proposals: Sequence[Proposal], latencies: Sequence[float]) -> None:
        points = [self.point(p) for p in proposals]
        super().tell(proposals, latencies)
        self._teach(list(zip(points, latencies, strict=True)), self.workload)

    def _teach(self, results: Sequence[tuple[Point, float]], workload: str) -> None:
        if results:
            rows = self.points.vectors([point for point, _ in results])
            self.model.learn([row[None] for row in rows], [s for _, s in results], workload)

    def _study(self) -> None:
        """Learn from other logs what the first tuner of this signature has not learnt already."""
        for lesson in self.args.lessons:
            if lesson.workload not in self.model.lessons.group:
                read = [(self.points.translate(t.trace), t.latency) for t in lesson.trials]
                results = [(p, seconds) for p, seconds in read if p is not None]
                self._teach(results, lesson.workload)

    def _informed(self) -> bool:
        """Whether other workloads with the same knobs have been measured enough to help."""
        return len(self.model.lessons) - len(self.measured) >= 4 * WARMUP

    def _around_best(self) -> Iterator[Point]:
        """Without end: draws, and every other time a change of the best point so far."""
        while True:
            yield self.points.draw(self.rng)
            best = self.best(1)
            if best:
                yield self.points.mutate(best[0], self.rng)

    def _evolved(self) -> list[Point]:
        """New points, the best by the model first."""
        size, keep = int(self.options["population"]), int(self.options["parents"])
        parents = self.best(keep)
        pool: dict[Point, float] = {}
        generation = [self.points.draw(self.rng) for _ in range(size)]
        for last in [False] * int(self.options["generations"]) + [True]:
            fresh = [p for p in dict.fromkeys([*generation, *parents]) if p not in pool]
            if fresh:
                rows = self.points.vectors(fresh)
                scores = self.model.score([row[None] for row in rows])
                pool.update(zip(fresh, scores.tolist(), strict=True))
            if last or not pool:
                break
            parents = sorted(pool, key=pool.__getitem__, reverse=True)[:keep]
            generation = [self._child(parents) for _ in range(size)]
        order = sorted(pool, key=pool.__getitem__, reverse=True)
        return [p for p in order if p not in self.seen]

    def _child(self, parents: Sequence[Point]) -> Point:
        one, other = self.rng.choice(parents), self.rng.choice(parents)
        if one is other:
            return self.points.mutate(one, self.rng)
        child = self.points.cross(one, other, self.rng)
        if self.rng.random() < float(self.options["mutate"]):
            child = self.points.mutate(child, self.rng)
        return child


class EvolutionaryTuner(KnobTuner):
    """A second look, at the programs of the points that the first model likes."""

    name = "xgb"

    def __init__(self, args: TunerArgs) -> None:
        self._features: dict[str, np.ndarray] = {}
        self._cost = 0.0
        """Seconds that one replay with its features takes, a running mean."""
        super().__init__(args)

    def ask(self, count: int, seconds: float | None = None) -> list[Proposal]:
        began = time.perf_counter()
        most = count * max(1, int(self.options["replays"]))
        if seconds is not None and self._cost:
            most = max(count, min(most, int(seconds / self._cost)))
        looked = self.look(islice(self.suggest(most), 4 * most), most, count)
        if not looked:
            return []
        rows = self.args.model.features(self.points.context, [p.schedule for p in looked])
        order = self._order(looked, rows)
        for place in order[count:]:
            self.forget(looked[place])
        chosen = [looked[place] for place in order[:count]]
        for place in order[:count]:
            self._features[looked[place].candidate] = rows[place]
        self.take(chosen)
        spent = (time.perf_counter() - began) / len(looked)
        self._cost = spent if not self._cost else 0.7 * self._cost + 0.3 * spent
        return chosen

    def tell(self, proposals: Sequence[Proposal], latencies: Sequence[float]) -> None:
        super().tell(proposals, latencies)
        rows = [self._features.pop(p.candidate) for p in proposals]
        self.args.model.learn(rows, latencies, self.workload)

    def _order(self, looked: Sequence[Proposal], rows: Sequence[np.ndarray]) -> list[int]:
        """Places of the candidates, the most promising first: the mean rank under both models."""
        if not self.args.model.ready:
            return list(range(len(looked)))
        points = self.points.vectors([self.point(p) for p in looked])
        mine = self.model.score([row[None] for row in points])
        shared = self.args.model.score(rows)
        ranks = np.argsort(np.argsort(-mine)) + np.argsort(np.argsort(-shared))
        return [int(place) for place in np.argsort(ranks, kind="stable")]


def create(args: TunerArgs) -> Tuner:
    return EvolutionaryTuner(args)
