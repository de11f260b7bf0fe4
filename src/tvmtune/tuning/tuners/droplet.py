"""``droplet``: coordinate descent from the best points.

After Droplet Search (Canesche et al., ACM TOPC 2024): a kernel's cost is taken to be smooth enough
along each knob that a step to a better neighbour leads on, as a drop runs downhill.
"""

from __future__ import annotations

from collections.abc import Iterator

from tvmtune.tuning.points import Point
from tvmtune.tuning.tuners.base import Tuner, TunerArgs
from tvmtune.tuning.tuners.points import PointTuner

OPTIONS: dict[str, int | float] = {"start": 16}
"""``--tuner-option``: random points that are measured before the first descent."""


class DropletTuner(PointTuner):
    """Measures the neighbours of the best point and moves when one is better; where none is, the next
    best point that has unmeasured neighbours is the next start."""

    def __init__(self, args: TunerArgs) -> None:
        super().__init__(args)
        self._start = int({**OPTIONS, **args.options}["start"])

    def suggest(self, count: int) -> Iterator[Point]:
        for _ in range(self._start - len(self.measured)):
            yield self.points.draw(self.rng)
        for centre in self.best(len(self.measured)):
            steps = [p for p in self.points.neighbours(centre) if p not in self.seen]
            self.rng.shuffle(steps)
            yield from steps
        while True:
            yield self.points.draw(self.rng)


def create(args: TunerArgs) -> Tuner:
    return DropletTuner(args)
