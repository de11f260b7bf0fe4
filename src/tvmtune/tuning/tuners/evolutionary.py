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
    "steps": 0.5,
    "replays": 3,
}
"""``--tuner-option``: points in a generation; generations per round; the best of one that bring forth
the next; probability that a child is changed beyond its parents; part of a round that is drawn at
random instead of by the model; part of it that are neighbours of the best points; programs that are
looked at for each that is measured (``xgb``)."""
# ``steps`` on the spaces of benchmarks/, xgb-knob with 48 seeds, trials to 95% of the best: without 146
# and 48, a quarter 95 and 42, half 90 and 40, three quarters 81 and 45.
ALIKE = 8
"""So many programs without any difference are taken for a sign that there is none."""
WARMUP = 16
"""Measurements of a workload before its own model is trusted, where no other workload helps."""


class KnobTuner(PointTuner):
    """The model sees decisions only."""

    def __init__(self, args: TunerArgs) -> None:
        super().__init__(args)
        self.options = {**OPTIONS, **args.options}
        self.workload = args.implementation.workload_key
        self.model = args.model.of_points(self.points.signature, self.workload)
        known = [(point, self.measured[point]) for point in self._names.values()]
        self._teach(known, self.workload, list(self._names))
        self._study()
        self._first: list[Point] | None = None
        """Points that are good elsewhere: tried before anything else. None until the first round."""

    def suggest(self, count: int) -> Iterator[Point]:
        yield from self._sure(count)
        yield from self._promising()

    def _sure(self, count: int) -> Iterator[Point]:
        """Of a round of ``count``, the points that the model is not asked about."""
        if self._first is None:
            adapted = [self.points.adapt(trace) for trace in self.args.relatives()]
            self._first = [p for p in adapted if p is not None]
        while self._first:
            yield self._first.pop(0)
        if not self._cold:
            yield from islice(self._steps(), round(count * float(self.options["steps"])))
            for _ in range(count):
                if self.rng.random() < float(self.options["epsilon"]):
                    yield self.points.draw(self.rng)

    def _steps(self) -> Iterator[Point]:
        """Unmeasured neighbours of the best points: what a descent would try next."""
        for centre in self.best(8):
            near = [p for p in dict.fromkeys(self.points.neighbours(centre)) if p not in self.seen]
            if near:
                scores = self.model.score([row[None] for row in self.points.vectors(near)])
                yield from (near[place] for place in np.argsort(-scores, kind="stable"))

    def _promising(self) -> Iterator[Point]:
        """The rest, the best by the model first."""
        if self._cold:
            yield from self._around_best()
        yield from self._evolved()

    @property
    def _cold(self) -> bool:
        """Whether the model knows too little to be asked."""
        return len(self.measured) < WARMUP and not self._informed()

    def tell(self, proposals: Sequence[Proposal], latencies: Sequence[float]) -> None:
        points = [self.point(p) for p in proposals]
        super().tell(proposals, latencies)
        names = [p.candidate for p in proposals]
        self._teach(list(zip(points, latencies, strict=True)), self.workload, names)

    def revise(self, candidate: str, latency: float) -> None:
        super().revise(candidate, latency)
        self.model.revise(self.workload, candidate, latency)

    def _teach(
        self,
        results: Sequence[tuple[Point, float]],
        workload: str,
        candidates: Sequence[str] = (),
    ) -> None:
        if results:
            rows = self.points.vectors([point for point, _ in results])
            latencies = [seconds for _, seconds in results]
            self.model.learn([row[None] for row in rows], latencies, workload, candidates)

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
            new = (p for p in dict.fromkeys([*generation, *parents]) if p not in pool)
            fresh = [p for p in new if self.points.fits(p)]
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

    def __init__(self, args: TunerArgs) -> None:
        self._features: dict[str, np.ndarray] = {}
        self._alike = False
        """Whether this space's programs all look the same, as where a schedule only notes its knobs:
        then a look at them tells nothing."""
        self._cost = 0.0
        """Seconds that one replay with its features takes, a running mean."""
        super().__init__(args)

    def ask(self, count: int, seconds: float | None = None) -> list[Proposal]:
        if self._alike:
            return super().ask(count, seconds)
        began = time.perf_counter()
        most = count * max(1, int(self.options["replays"]))
        if seconds is not None and self._cost:
            most = max(count, min(most, int(seconds / self._cost)))
        sure = self.take(self.replay(self._sure(count), count))
        wanted = count - len(sure)
        looked = sure + self.look(
            islice(self._promising(), 4 * most), most - len(sure) if wanted else 0, wanted
        )
        if not looked:
            return []
        rows = self.args.model.features(self.points.context, [p.schedule for p in looked])
        self._alike = len(rows) >= ALIKE and all(np.array_equal(rows[0], row) for row in rows)
        # Those that are sure come first whatever the models say.
        order = [*range(len(sure)), *self._order(looked, rows, len(sure))]
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
        if self._alike:
            self._features.clear()
            return
        names = [p.candidate for p in proposals]
        rows = [self._features.pop(name) for name in names]
        self.args.model.learn(rows, latencies, self.workload, names)

    def revise(self, candidate: str, latency: float) -> None:
        super().revise(candidate, latency)
        if not self._alike:
            self.args.model.revise(self.workload, candidate, latency)

    def _order(
        self, looked: Sequence[Proposal], rows: Sequence[np.ndarray], first: int
    ) -> list[int]:
        """Places from ``first`` on, the most promising candidates before the others: by the mean rank
        under both models."""
        places = list(range(first, len(looked)))
        if not places or not self.args.model.ready:
            return places
        points = self.points.vectors([self.point(looked[place]) for place in places])
        mine = self.model.score([row[None] for row in points])
        shared = self.args.model.score([rows[place] for place in places])
        ranks = np.argsort(np.argsort(-mine)) + np.argsort(np.argsort(-shared))
        return [places[place] for place in np.argsort(ranks, kind="stable")]


def create(args: TunerArgs) -> Tuner:
    return EvolutionaryTuner(args)
