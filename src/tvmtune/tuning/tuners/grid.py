"""``grid``: every point of the space, in order."""

from __future__ import annotations

from collections.abc import Iterator

from tvmtune.tuning.points import Point
from tvmtune.tuning.tuners.base import Proposal, Tuner, TunerArgs
from tvmtune.tuning.tuners.points import PointTuner

OPTIONS: dict[str, int | float] = {}


class GridTuner(PointTuner):
    """Goes through the space from its first point to its last, the last knob fastest."""

    name = "grid"

    def __init__(self, args: TunerArgs) -> None:
        super().__init__(args)
        self._order = iter(self.points)

    def suggest(self, count: int) -> Iterator[Point]:
        return self._order

    def ask(self, count: int, seconds: float | None = None) -> list[Proposal]:
        found = self.replay(self._order, count)
        for proposal in found:
            self.take(proposal)
        return found


def create(args: TunerArgs) -> Tuner:
    return GridTuner(args)
