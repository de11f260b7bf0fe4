"""``grid``: every point of the space, in order."""

from __future__ import annotations

from tvmtune.tuning.tuners.base import Proposal, Tuner, TunerArgs
from tvmtune.tuning.tuners.point_tuner import PointTuner

OPTIONS: dict[str, int | float] = {}
ENUMERATES = True
"""Goes through the whole space, however large."""


class GridTuner(PointTuner):
    """Enumerates the space, the last knob fastest."""

    def __init__(self, args: TunerArgs) -> None:
        super().__init__(args)
        self._order = iter(self.points)

    def ask(self, count: int, seconds: float | None = None) -> list[Proposal]:
        return self.take(self.replay(self._order, count))


def create(args: TunerArgs) -> Tuner:
    return GridTuner(args)
