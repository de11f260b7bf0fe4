"""Caches replayed points and their features, so that many runs on one space replay each point once.

Replaying a point takes some 3 ms and extracting its features 5 ms more: nearly all the time of a
simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.tuning.model import CostModel
from tvmtune.tuning.space_points import Point, PointSpace

if TYPE_CHECKING:
    import tvm
    from tvm.s_tir import Schedule

    from tvmtune.types import Implementation


class ReplayCache:
    """Schedules and features by point; some 60 KB each."""

    def __init__(self) -> None:
        self.schedules: dict[Point, tuple[Schedule, Point] | None] = {}
        self.features: dict[int, np.ndarray] = {}
        """By the identity of a schedule that :attr:`schedules` keeps alive; empty until extracted."""

    def model(self, seed: int) -> CostModel:
        """A new cost model that looks up features here."""
        return _CachedCostModel(self, seed)

    def point_space(
        self, implementation: Implementation, target: tvm.target.Target, *, seed: int, threads: int
    ) -> PointSpace:
        """A new space that looks up schedules here."""
        return _CachedPointSpace(self, implementation, target, seed=seed, threads=threads)


class _CachedPointSpace(PointSpace):
    def __init__(
        self,
        cache: ReplayCache,
        implementation: Implementation,
        target: tvm.target.Target,
        *,
        seed: int,
        threads: int,
    ) -> None:
        self._cache = cache
        super().__init__(implementation, target, seed=seed, threads=threads)

    def instantiate(self, point: Point, seed: int) -> tuple[Schedule, Point] | None:
        if None in point.decisions:  # TVM draws a different one for each seed
            return super().instantiate(point, seed)
        schedules = self._cache.schedules
        if point not in schedules:
            made = schedules[point] = super().instantiate(point, seed)
            if made is not None:
                self._cache.features[id(made[0])] = _NOT_EXTRACTED
        return schedules[point]


class _CachedCostModel(CostModel):
    def __init__(self, cache: ReplayCache, seed: int) -> None:
        super().__init__(seed=seed)
        self._features = cache.features

    def features(self, context: Any, schedules: Sequence[Schedule]) -> list[np.ndarray]:
        known = self._features
        new = [s for s in schedules if known.get(id(s), _NOT_EXTRACTED) is _NOT_EXTRACTED]
        rows = {id(s): r for s, r in zip(new, super().features(context, new), strict=True)}
        known.update({key: r for key, r in rows.items() if key in known})
        return [rows[id(s)] if id(s) in rows else known[id(s)] for s in schedules]


_NOT_EXTRACTED = np.empty(0)
"""Features of a schedule before they are extracted."""
