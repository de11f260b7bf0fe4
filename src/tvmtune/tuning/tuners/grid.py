"""``grid``: every point of the space, in order."""

from __future__ import annotations

from tvmtune.tuning.tuners.base import Proposal, Tuner, TunerArgs
from tvmtune.tuning.tuners.points import PointTuner

OPTIONS: dict[str, int | float] = {}


class GridTuner(PointTuner):
    """Goes through the space from its first point to its last, the last knob fastest."""

    def __init__(self, args: TunerArgs) -> None:
        super().__init__(args)
        self._order = iter(self.points)

    def ask(self, count: int, seconds: float | None = None) -> list[Proposal]:
        return self.take(self.replay(self._order, count))


def create(args: TunerArgs) -> Tuner:
    return GridTuner(args)
