"""``xgb`` and ``xgb-knob``: evolution of points under a cost model on their decisions.

The model scores decisions without a program, so thousands of points are evolved. The best are replayed.
``xgb-knob`` proposes these; ``xgb`` first ranks their programs by features, with a model that all tasks
of the session share.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from tvmtune.tuning.space_points import Point
from tvmtune.tuning.tuners.base import Proposal, Tuner, TunerArgs
from tvmtune.tuning.tuners.point_tuner import PointTuner

OPTIONS: dict[str, int | float] = {
    "population": 512,
    "generations": 3,
    "parents": 64,
    "mutate": 0.6,
    "epsilon": 0.1,
    "steps": 0.5,
    "replays": 3,
}
"""``--tuner-option``: points per generation; generations per round; parents of the next generation;
probability that a child is mutated; fraction of a round that is drawn at random instead of by the
model; fraction that are neighbors of the best points; programs that the feature model ranks for each
that is measured (``xgb``)."""
# ``steps`` on the spaces of benchmarks/, xgb-knob with 48 seeds, trials to 95% of the best: without 146
# and 48, a quarter 95 and 42, half 90 and 40, three quarters 81 and 45.
ALIKE = 8
"""If this many programs have equal features, all programs of the space are taken to be alike."""
WARMUP = 16
"""Measurements of a workload before its model is used, unless other workloads help."""


class KnobTuner(PointTuner):
    """Evolves points under a model of their decisions."""

    def __init__(self, args: TunerArgs) -> None:
        super().__init__(args)
        self.options = {**OPTIONS, **args.options}
        self.workload = args.implementation.workload_key
        self.model = args.model.of_points(self.points.signature, self.workload)
        known = [(point, self.measured[point]) for point in self._names.values()]
        self._train(known, self.workload, list(self._names))
        self._train_with_transfer_samples()
        self._first: list[Point] | None = None
        """Warm start: points that are good elsewhere, to be tried first. None until the first round."""

    def suggest(self, count: int) -> Iterator[Point]:
        yield from self._unconditional(count)
        yield from self._promising()

    def _unconditional(self, count: int) -> Iterator[Point]:
        """The points of a round of ``count`` that are chosen without the model."""
        if self._first is None:
            adapted = [self.points.adapt(trace) for trace in self.args.warm_start()]
            self._first = [p for p in adapted if p is not None]
        while self._first:
            yield self._first.pop(0)
        if not self._cold:
            yield from islice(
                self._neighbors_of_best(), round(count * float(self.options["steps"]))
            )
            for _ in range(count):
                if self.rng.random() < float(self.options["epsilon"]):
                    yield self.points.draw(self.rng)

    def _neighbors_of_best(self) -> Iterator[Point]:
        """Unmeasured neighbors of the best points, as coordinate descent would try them."""
        for center in self.best(8):
            near = [p for p in dict.fromkeys(self.points.neighbors(center)) if p not in self.seen]
            if near:
                scores = self.model.score([row[None] for row in self.points.vectors(near)])
                yield from (near[place] for place in np.argsort(-scores, kind="stable"))

    def _promising(self) -> Iterator[Point]:
        """The other points, best by the model first."""
        if self._cold:
            yield from self._around_best()
        yield from self._evolved()

    @property
    def _cold(self) -> bool:
        """Whether the model knows too little to be used."""
        return len(self.measured) < WARMUP and not self._informed()

    def tell(self, proposals: Sequence[Proposal], latencies: Sequence[float]) -> None:
        points = [self.point(p) for p in proposals]
        super().tell(proposals, latencies)
        names = [p.candidate for p in proposals]
        self._train(list(zip(points, latencies, strict=True)), self.workload, names)

    def revise(self, candidate: str, latency: float) -> None:
        super().revise(candidate, latency)
        self.model.revise(self.workload, candidate, latency)

    def _train(
        self,
        results: Sequence[tuple[Point, float]],
        workload: str,
        candidates: Sequence[str] = (),
    ) -> None:
        if results:
            rows = self.points.vectors([point for point, _ in results])
            latencies = [seconds for _, seconds in results]
            self.model.learn([row[None] for row in rows], latencies, workload, candidates)

    def _train_with_transfer_samples(self) -> None:
        """Learn from other logs, unless another tuner with this signature has done so."""
        for sample in self.args.transfer_samples:
            if sample.workload not in self.model.training_set.group:
                read = [(self.points.translate(t.trace), t.latency) for t in sample.trials]
                results = [(p, seconds) for p, seconds in read if p is not None]
                self._train(results, sample.workload)

    def _informed(self) -> bool:
        """Whether enough measurements of other workloads with the same knobs are known."""
        return len(self.model.training_set) - len(self.measured) >= 4 * WARMUP

    def _around_best(self) -> Iterator[Point]:
        """Endless: random points, alternating with mutations of the best one."""
        while True:
            yield self.points.draw(self.rng)
            best = self.best(1)
            if best:
                yield self.points.mutate(best[0], self.rng)

    def _evolved(self) -> list[Point]:
        """New points, best by the model first."""
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
    """Ranks the programs of the points that the first model prefers by a second model, of features."""

    def __init__(self, args: TunerArgs) -> None:
        self._features: dict[str, np.ndarray] = {}
        self._alike = False
        """Whether all programs of this space have equal features, as where a schedule only records its
        knobs. Then the second model cannot rank them."""
        self._cost = 0.0
        """Seconds to replay a point and extract its features, a running mean."""
        super().__init__(args)

    def ask(self, count: int, seconds: float | None = None) -> list[Proposal]:
        if self._alike:
            return super().ask(count, seconds)
        began = time.perf_counter()
        most = count * max(1, int(self.options["replays"]))
        if seconds is not None and self._cost:
            most = max(count, min(most, int(seconds / self._cost)))
        first = self.take(self.replay(self._unconditional(count), count))
        wanted = count - len(first)
        replayed = first + self.replay_or_fill(
            islice(self._promising(), 4 * most), most - len(first) if wanted else 0, wanted
        )
        if not replayed:
            return []
        rows = self.args.model.features(self.points.context, [p.schedule for p in replayed])
        self._alike = len(rows) >= ALIKE and all(np.array_equal(rows[0], row) for row in rows)
        # The unconditional ones come first, whatever the models say.
        order = [*range(len(first)), *self._order(replayed, rows, len(first))]
        for place in order[count:]:
            self.forget(replayed[place])
        chosen = [replayed[place] for place in order[:count]]
        for place in order[:count]:
            self._features[replayed[place].candidate] = rows[place]
        self.take(chosen)
        spent = (time.perf_counter() - began) / len(replayed)
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
        self, replayed: Sequence[Proposal], rows: Sequence[np.ndarray], first: int
    ) -> list[int]:
        """Places from ``first`` on, most promising candidates first, by the mean rank under both
        models."""
        places = list(range(first, len(replayed)))
        if not places or not self.args.model.ready:
            return places
        points = self.points.vectors([self.point(replayed[place]) for place in places])
        by_decisions = self.model.score([row[None] for row in points])
        by_features = self.args.model.score([rows[place] for place in places])
        ranks = np.argsort(np.argsort(-by_decisions)) + np.argsort(np.argsort(-by_features))
        return [places[place] for place in np.argsort(ranks, kind="stable")]


def create(args: TunerArgs) -> Tuner:
    return EvolutionaryTuner(args)
