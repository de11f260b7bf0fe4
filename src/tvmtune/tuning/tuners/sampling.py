"""``random``: independent random points of the space."""

from __future__ import annotations

from collections.abc import Iterator

from tvmtune.tuning.space_points import Point
from tvmtune.tuning.tuners.base import Tuner, TunerArgs
from tvmtune.tuning.tuners.point_tuner import PointTuner

OPTIONS: dict[str, int | float] = {}


class RandomTuner(PointTuner):
    """Draws a design, then each of its decisions, uniformly."""

    def suggest(self, count: int) -> Iterator[Point]:
        while True:
            yield self.points.draw(self.rng)


def create(args: TunerArgs) -> Tuner:
    return RandomTuner(args)
