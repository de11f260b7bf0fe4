"""The base class of tuners that work on points: replay, de-duplication, results."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from tvmtune.tuning.space_points import Point, PointSpace
from tvmtune.tuning.tuners.base import Proposal, TunerArgs

DRAWS_PER_CANDIDATE = 12
"""Points tried per new candidate before the space counts as exhausted."""
ENUMERABLE = 20_000
"""Spaces up to this size are enumerated when random points find nothing new."""


class PointTuner:
    """A tuner that suggests points and learns from :attr:`measured`.

    A subclass implements :meth:`suggest` or overrides :meth:`ask`.
    """

    def __init__(self, args: TunerArgs) -> None:
        self.args = args
        self.rng = random.Random(args.seed)
        self.points = (args.point_space or PointSpace)(
            args.implementation, args.target, seed=args.seed, threads=args.threads
        )
        self.measured: dict[Point, float] = {}
        """Latency in seconds of each point, infinity for failures."""
        self.seen: set[Point] = set()
        """Points that need no replay: measured, refused, or equal to another candidate."""
        self._proposed: dict[str, Point] = {}
        self._names: dict[str, Point] = {}
        """Points of the measured candidates."""
        for trial in args.history:
            point = self.points.recall(trial.trace)
            if point is not None:
                self.measured[point] = trial.latency
                self._names[trial.candidate] = point
                self.seen.add(point)
                self.points.observe(point)

    @property
    def size(self) -> int | None:
        """Points in the space, if known."""
        return self.points.size

    def suggest(self, count: int) -> Iterator[Point]:
        """Points in the order in which to try them, at least about ``count``; may be endless."""
        raise NotImplementedError

    def ask(self, count: int, seconds: float | None = None) -> list[Proposal]:
        return self.propose(self.suggest(count), count)

    def tell(self, proposals: Sequence[Proposal], latencies: Sequence[float]) -> None:
        for proposal, latency in zip(proposals, latencies, strict=True):
            point = self._proposed.pop(proposal.candidate, None)
            if point is not None:
                self.measured[point] = latency
                self._names[proposal.candidate] = point

    def revise(self, candidate: str, latency: float) -> None:
        point = self._names.get(candidate)
        if point is not None:
            self.measured[point] = latency

    def best(self, count: int) -> list[Point]:
        """The fastest measured points."""
        good = [p for p, seconds in self.measured.items() if seconds < float("inf")]
        return sorted(good, key=self.measured.__getitem__)[:count]

    def propose(self, points: Iterable[Point], count: int) -> list[Proposal]:
        """The first ``count`` new candidates among the points, filled up from the rest of the space."""
        return self.take(
            self.replay_or_fill(islice(points, count * DRAWS_PER_CANDIDATE), count, count)
        )

    def take(self, proposals: list[Proposal]) -> list[Proposal]:
        """Mark candidates from :meth:`replay` as proposed, and return them."""
        self.args.known.update(proposal.candidate for proposal in proposals)
        return proposals

    def replay_or_fill(self, points: Iterable[Point], most: int, least: int) -> list[Proposal]:
        """Up to ``most`` new candidates among the points, filled up to ``least`` from the rest of the
        space; see :meth:`replay`."""
        proposals = self.replay(points, most)
        if len(proposals) < least:
            proposals += self.replay(self._remaining(least), least - len(proposals))
        return proposals

    def replay(self, points: Iterable[Point], count: int) -> list[Proposal]:
        """Up to ``count`` candidates that are neither measured nor about to be, in the order of the
        points."""
        proposals: list[Proposal] = []
        fresh = (p for p in points if p not in self.seen)
        while len(proposals) < count:
            missing = count - len(proposals)
            batch = []
            for point in fresh:
                if point not in self.seen:
                    if None not in point.decisions:  # otherwise TVM draws a different one each time
                        self.seen.add(point)
                    batch.append((point, self.rng.randrange(1, 1 << 31)))
                if len(batch) == missing:
                    break
            if not batch:
                break
            for result in _pool(self.args.threads).map(self._instantiate, batch):
                if result is None:
                    continue
                proposal, point = result
                self.points.observe(point)
                self.seen.add(point)
                # Several points may result in the same candidate.
                name = proposal.candidate
                if name not in self.args.known and name not in self._proposed:
                    proposals.append(proposal)
                    self._proposed[name] = point
        return proposals

    def point(self, proposal: Proposal) -> Point:
        """The point of a candidate that is not measured yet."""
        return self._proposed[proposal.candidate]

    def forget(self, proposal: Proposal) -> None:
        """Make a candidate that is not measured after all available again."""
        self.seen.discard(self._proposed.pop(proposal.candidate))

    def _instantiate(self, entry: tuple[Point, int]) -> tuple[Proposal, Point] | None:
        made = self.points.instantiate(*entry)
        return None if made is None else (Proposal.of(made[0]), made[1])

    def _remaining(self, count: int) -> Iterator[Point]:
        """All points of a small space; random ones of a space that is large or of unknown size."""
        size = self.size
        if size is not None and size <= ENUMERABLE:
            yield from self.points  # from the start: some may have been forgotten
            return
        for _ in range(count * DRAWS_PER_CANDIDATE):
            yield self.points.draw(self.rng)


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Shared by all tuners of the process: a large network has hundreds."""
    return ThreadPoolExecutor(max(1, threads))
