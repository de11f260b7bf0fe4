"""``ga``: a genetic algorithm that trusts measurements alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tvmtune.tuning.points import Point
from tvmtune.tuning.tuners.base import Tuner, TunerArgs
from tvmtune.tuning.tuners.points import PointTuner

OPTIONS: dict[str, int | float] = {"population": 24, "tournament": 3, "mutate": 0.5}
"""``--tuner-option``: the best measured candidates, which may be parents; how many are drawn for each
parent, of which the quickest is chosen; probability that a child is changed once more."""


class GeneticTuner(PointTuner):
    """Children of two parents, each the quickest of a few drawn from the best.

    The population is renewed with every result, whatever the size of a round.
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
