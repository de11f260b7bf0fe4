"""``droplet``: coordinate descent from the best points.

After Droplet Search (Canesche et al., ACM TACO 2024): a kernel's cost is assumed to be smooth
along each knob, so that steps to better neighbors lead to a minimum, as a droplet runs downhill.
"""

from __future__ import annotations

from collections.abc import Iterator

from tvmtune.tuning.space_points import Point
from tvmtune.tuning.tuners.base import Tuner, TunerArgs
from tvmtune.tuning.tuners.point_tuner import PointTuner

OPTIONS: dict[str, int | float] = {"start": 16}
"""``--tuner-option``: random points measured before the first descent."""


class DropletTuner(PointTuner):
    """Measures the neighbors of the best point and moves when one is better; otherwise continues from
    the next best point with unmeasured neighbors."""

    def __init__(self, args: TunerArgs) -> None:
        super().__init__(args)
        self._start = int({**OPTIONS, **args.options}["start"])

    def suggest(self, count: int) -> Iterator[Point]:
        for _ in range(self._start - len(self.measured)):
            yield self.points.draw(self.rng)
        for center in self.best(len(self.measured)):
            steps = [p for p in self.points.neighbors(center) if p not in self.seen]
            self.rng.shuffle(steps)
            yield from steps
        while True:
            yield self.points.draw(self.rng)


def create(args: TunerArgs) -> Tuner:
    return DropletTuner(args)
