"""What a process remembers of a space's points, so that many runs on it replay each but once.

Replaying a point takes some 3 ms and extracting its features 5 ms more, which is all the time that a
simulation takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.tuning.model import CostModel
from tvmtune.tuning.points import Point, Points
from tvmtune.tuning.tuners.base import Tuner
from tvmtune.tuning.tuners.points import PointTuner

if TYPE_CHECKING:
    from tvm.s_tir import Schedule


class Replays:
    """Schedules and features by point; some 60 KB for each."""

    def __init__(self) -> None:
        self.schedules: dict[Point, tuple[Schedule, Point] | None] = {}
        self.features: dict[int, np.ndarray] = {}
        """By the identity of a schedule that :attr:`schedules` keeps alive; empty until asked for."""

    def model(self, seed: int) -> CostModel:
        """A fresh cost model that looks features up here."""
        return _Model(self, seed)

    def shared_with(self, tuner: Tuner) -> Tuner:
        """The tuner, which from now on looks its points up here."""
        if isinstance(tuner, PointTuner):
            tuner.points = _Points(self, tuner.points)
        return tuner


class _Points(Points):
    def __init__(self, replays: Replays, points: Points) -> None:
        vars(self).update(vars(points))
        self._replays = replays.schedules
        self._features = replays.features

    def realise(self, point: Point, seed: int) -> tuple[Schedule, Point] | None:
        if None in point.decisions:  # TVM draws, another one for each seed
            return super().realise(point, seed)
        if point not in self._replays:
            found = super().realise(point, seed)
            self._replays[point] = found
            if found is not None:
                self._features[id(found[0])] = _UNKNOWN
        return self._replays[point]


class _Model(CostModel):
    def __init__(self, replays: Replays, seed: int) -> None:
        super().__init__(seed=seed)
        self._known = replays.features

    def features(self, context: Any, schedules: Sequence[Schedule]) -> list[np.ndarray]:
        new = [s for s in schedules if self._known.get(id(s), _UNKNOWN) is _UNKNOWN]
        rows = {id(s): r for s, r in zip(new, super().features(context, new), strict=True)}
        self._known.update({key: r for key, r in rows.items() if key in self._known})
        return [rows[id(s)] if id(s) in rows else self._known[id(s)] for s in schedules]


_UNKNOWN = np.empty(0)
"""Stands for the features of a schedule that nobody has asked for yet."""
