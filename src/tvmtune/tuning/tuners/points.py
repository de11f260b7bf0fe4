"""What tuners that work on points have in common: replay, de-duplication, memory of results."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from tvmtune.tuning.points import Point, Points
from tvmtune.tuning.tuners.base import Proposal, TunerArgs

DRAWS = 12
"""Points that are tried for each new candidate before the space counts as exhausted."""
ENUMERABLE = 20_000
"""Points up to which a space is gone through to its end when draws find nothing new."""


class PointTuner:
    """A tuner that says which points it would like; the rest is done here.

    A subclass has :meth:`suggest`, or an :meth:`ask` of its own; ``measured`` holds what it may learn
    from.
    """

    def __init__(self, args: TunerArgs) -> None:
        self.args = args
        self.rng = random.Random(args.seed)
        self.points = Points(args.implementation, args.target, seed=args.seed, threads=args.threads)
        self.measured: dict[Point, float] = {}
        """Latency in seconds of each point, infinity for failures."""
        self.seen: set[Point] = set()
        """Points that need not be replayed again: measured, refused, or alike."""
        self._proposed: dict[str, Point] = {}
        self._names: dict[str, Point] = {}
        """Points of the candidates that were measured."""
        for trial in args.history:
            point = self.points.recall(trial.trace)
            if point is not None:
                self.measured[point] = trial.latency
                self._names[trial.candidate] = point
                self.seen.add(point)
                self.points.observe(point)

    @property
    def size(self) -> int | None:
        """Points in the space, where that is known."""
        return self.points.size

    def suggest(self, count: int) -> Iterator[Point]:
        """Points in the order in which they should be tried, of which about ``count`` are wanted;
        may be endless."""
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
        """The quickest points measured."""
        good = [p for p, seconds in self.measured.items() if seconds < float("inf")]
        return sorted(good, key=self.measured.__getitem__)[:count]

    def propose(self, wanted: Iterable[Point], count: int) -> list[Proposal]:
        """The first ``count`` new candidates among the points, filled up from the rest of the space."""
        return self.take(self.look(islice(wanted, count * DRAWS), count, count))

    def take(self, found: list[Proposal]) -> list[Proposal]:
        """Count candidates that :meth:`replay` found as proposed, and return them."""
        self.args.known.update(proposal.candidate for proposal in found)
        return found

    def look(self, wanted: Iterable[Point], most: int, least: int) -> list[Proposal]:
        """Up to ``most`` new candidates among the points, filled up to ``least`` from the rest of the
        space; as :meth:`replay`."""
        found = self.replay(wanted, most)
        if len(found) < least:
            found += self.replay(self._remaining(least), least - len(found))
        return found

    def replay(self, wanted: Iterable[Point], count: int) -> list[Proposal]:
        """Up to ``count`` candidates that nobody has measured and nobody is about to, in the order of
        the points."""
        found: list[Proposal] = []
        fresh = (p for p in wanted if p not in self.seen)
        while len(found) < count:
            lacking = count - len(found)
            batch = []
            for point in fresh:
                if point not in self.seen:
                    if None not in point.decisions:  # else TVM draws, another one each time
                        self.seen.add(point)
                    batch.append((point, self.rng.randrange(1, 1 << 31)))
                if len(batch) == lacking:
                    break
            if not batch:
                break
            for result in _pool(self.args.threads).map(self._realise, batch):
                if result is None:
                    continue
                proposal, point = result
                self.points.observe(point)
                self.seen.add(point)
                # Several points may come to the same candidate.
                name = proposal.candidate
                if name not in self.args.known and name not in self._proposed:
                    found.append(proposal)
                    self._proposed[name] = point
        return found

    def point(self, proposal: Proposal) -> Point:
        """Where a candidate that is not measured yet lies."""
        return self._proposed[proposal.candidate]

    def forget(self, proposal: Proposal) -> None:
        """Let a candidate that is not measured after all be found again."""
        self.seen.discard(self._proposed.pop(proposal.candidate))

    def _realise(self, wanted: tuple[Point, int]) -> tuple[Proposal, Point] | None:
        point, seed = wanted
        found = self.points.realise(point, seed)
        return None if found is None else (Proposal.of(found[0]), found[1])

    def _remaining(self, count: int) -> Iterator[Point]:
        """What is left of a small space; draws from one that is large or of unknown size."""
        size = self.size
        if size is not None and size <= ENUMERABLE:
            yield from self.points  # from the start: some may have been given back
            return
        for _ in range(count * DRAWS):
            yield self.points.draw(self.rng)


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """For all tuners of the process: a large network has hundreds."""
    return ThreadPoolExecutor(max(1, threads))
