"""``ga``: a genetic algorithm on measurements, without a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tvmtune.tuning.space_points import Point
from tvmtune.tuning.tuners.base import Tuner, TunerArgs
from tvmtune.tuning.tuners.point_tuner import PointTuner

OPTIONS: dict[str, int | float] = {"population": 24, "tournament": 3, "mutate": 0.5}
"""``--tuner-option``: number of best measured candidates that may be parents; how many are drawn for
each parent, the fastest of which is chosen; probability that a child is mutated."""


class GeneticTuner(PointTuner):
    """Children of two parents, each the fastest of a few drawn from the best (tournament selection).

    The population is updated with every result, whatever the size of a round.
    """

    def __init__(self, args: TunerArgs) -> None:
        super().__init__(args)
        options = {**OPTIONS, **args.options}
        self._population = int(options["population"])
        self._tournament = int(options["tournament"])
        self._mutate = float(options["mutate"])

    def suggest(self, count: int) -> Iterator[Point]:
        parents = self.best(self._population)
        for _ in range(self._population // 2 - len(parents)):
            yield self.points.draw(self.rng)
        while parents:
            child = self.points.cross(self._parent(parents), self._parent(parents), self.rng)
            if child in self.seen or self.rng.random() < self._mutate:
                child = self.points.mutate(child, self.rng)
            yield child
        while True:
            yield self.points.draw(self.rng)

    def _parent(self, ranked: Sequence[Point]) -> Point:
        return ranked[min(self.rng.randrange(len(ranked)) for _ in range(self._tournament))]


def create(args: TunerArgs) -> Tuner:
    return GeneticTuner(args)
