"""A space as points: one decision for each sampling instruction of one of its designs.

MetaSchedule's spaces are designs: sequences of schedule instructions, some of which sample. A point
names a design and the decisions of its samples. Points are cheap: thousands are drawn, mutated and
compared in the time it takes to replay one as a schedule.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.spaces import rule_space, traces
from tvmtune.spaces.gpu_limits import limits
from tvmtune.tuning.space_designs import (
    Decision,
    SpaceDesign,
    design_key,
    form_of,
    instruction_kinds,
    kinds_distance,
    plain_decision,
    trace_decisions,
)

if TYPE_CHECKING:
    import random

    import tvm
    from tvm.s_tir import Schedule

    from tvmtune.types import Implementation

_LEVELS = 6
"""Volumes in a vector: the four levels of spatial tiles and the two of reductions."""
_TRIES = 300
"""Random points tried until one fits the device."""
_OBSERVED = 6
"""Random schedules of each design that reveal the options of open knobs."""


@dataclass(frozen=True)
class Point:
    """A design of the space and a decision for each of its samples, in program order."""

    design: int
    decisions: tuple[Decision, ...]


class PointSpace:
    """The points of one implementation's space.

    Raises whatever TVM raises if the space cannot be generated.
    """

    def __init__(
        self, implementation: Implementation, target: tvm.target.Target, *, seed: int, threads: int
    ) -> None:
        self.mod = implementation.mod
        self.context = rule_space.tune_context(
            self.mod, target, implementation.space.generator(), seed=seed, threads=threads
        )
        generated = self.context.generate_design_space()
        self._postprocs = list(self.context.space_generator.postprocs)
        self._designs: list[SpaceDesign] = []
        self._by_key: dict[str, int] = {}
        for number, sch in enumerate(generated):
            self._by_key[design_key(traces.to_json(sch)[0])] = number
            trace = sch.trace.simplified(True)
            self._designs.append(SpaceDesign.of(trace, limits(self.mod, trace, target)))
        self._observe_open_knobs(seed)

    @property
    def signature(self) -> str:
        """Equal for spaces whose vectors have the same meaning, such as those of two convolutions."""
        return json.dumps([design.form for design in self._designs])

    @property
    def size(self) -> int | None:
        """Number of points; None if it depends on decisions."""
        sizes = [design.size for design in self._designs]
        return None if None in sizes else sum(s for s in sizes if s is not None)

    def __iter__(self) -> Iterator[Point]:
        """All points in order, the last knob fastest; for open knobs the options seen so far."""
        for number, design in enumerate(self._designs):
            for decisions in itertools.product(*(k.options or [None] for k in design.knobs)):
                yield Point(number, decisions)

    def draw(self, rng: random.Random) -> Point:
        """A random design, then random decisions, uniform among the points that fit."""
        number = rng.randrange(len(self._designs))
        knobs = self._designs[number].knobs
        for _ in range(_TRIES):
            drawn = Point(
                number, tuple(None if k.kind == "open" else rng.choice(k.options) for k in knobs)
            )
            if self.fits(drawn):
                break
        return drawn

    def fits(self, point: Point) -> bool:
        """Whether it respects the device's limits, as far as they are known."""
        bounds = self._designs[point.design].limits
        return bounds is None or bounds.allow(point.decisions)

    def mutate(self, point: Point, rng: random.Random) -> Point:
        """A different decision for one knob; for a tile mostly one factor moved to another loop."""
        knobs = self._designs[point.design].knobs
        mutable = [n for n, k in enumerate(knobs) if len(k.options) > 1]
        if not mutable:
            return self.draw(rng)
        place = rng.choice(mutable)
        knob, old = knobs[place], point.decisions[place]
        new: Decision = None
        if knob.kind == "tile" and isinstance(old, tuple) and rng.random() < 0.7:
            near = [tile for tile in _moves(old) if tile[-1] <= knob.innermost]
            new = rng.choice(near) if near else None
        if new is None:
            new = rng.choice([o for o in knob.options if o != old])
        return _with(point, place, new)

    def cross(self, one: Point, other: Point, rng: random.Random) -> Point:
        """Each decision from either parent; parents of different designs have no common children."""
        if one.design != other.design:
            return self.mutate(one, rng)
        pairs = zip(one.decisions, other.decisions, strict=True)
        return Point(one.design, tuple(rng.choice(pair) for pair in pairs))

    def neighbors(self, point: Point) -> list[Point]:
        """One step along each coordinate: a factor moved, the next choice, the next location."""
        steps_taken = []
        for place, knob in enumerate(self._designs[point.design].knobs):
            old = point.decisions[place]
            steps: Sequence[Decision]
            if knob.kind == "tile" and isinstance(old, tuple):
                steps = [tile for tile in _moves(old) if tile[-1] <= knob.innermost]
            else:
                steps = _beside(old, knob.options)
            steps_taken += [_with(point, place, new) for new in steps]
        return [each for each in steps_taken if self.fits(each)]

    def vectors(self, points: Sequence[Point]) -> np.ndarray:
        """(points, columns) float32: the design, logarithms of tile extents, choices, locations, and
        for each level of the tiles the logarithm of its volume."""
        width = 1 + max((sum(k.columns for k in d.knobs) for d in self._designs), default=0)
        table = np.full((len(points), width + _LEVELS), np.nan, "float32")
        for row, point in enumerate(points):
            values: list[float] = [point.design]
            levels = [0.0] * _LEVELS
            for knob, decision in zip(
                self._designs[point.design].knobs, point.decisions, strict=True
            ):
                if knob.kind == "tile" and isinstance(decision, tuple):
                    logs, inner = _logs(decision)
                    values += [*logs, *inner]
                    first = 0 if knob.parts > 2 else _LEVELS - 2
                    for level, value in enumerate(reversed(logs)):
                        if first + level < _LEVELS:
                            levels[first + level] += value
                else:
                    values.append(np.nan if decision is None else _number(decision))
            table[row, : len(values)] = values
            table[row, width:] = levels
        return table

    def instantiate(self, point: Point, seed: int) -> tuple[Schedule, Point] | None:
        """The schedule of a point, and the point it actually is: TVM repairs decisions that earlier
        ones made impossible. None if it does not fit or a post-processor rejects it."""
        from tvm.s_tir import Trace

        if not self.fits(point):
            return None
        design = self._designs[point.design]
        decisions = {
            inst: list(d) if isinstance(d, tuple) else d
            for inst, d in zip(design.samples, point.decisions, strict=True)
            if d is not None
        }
        trace = Trace(design.trace.insts, decisions)
        schedule = rule_space.replay(self.mod, trace, self._postprocs, seed)
        if schedule is None:
            return None
        taken = [
            plain_decision(schedule.trace.get_decision(inst))
            for inst in schedule.trace.insts
            if inst.kind.name in traces.SAMPLING
        ]
        return schedule, Point(point.design, tuple(taken[: len(point.decisions)]))

    def recall(self, trace: Any) -> Point | None:
        """The point of a recorded trace; None if its design is not in this space."""
        number = self._by_key.get(design_key(trace[0]))
        return None if number is None else Point(number, trace_decisions(trace))

    def adapt(self, trace: Any) -> Point | None:
        """The point most similar to a trace of another workload: the same inner tiles as far as the
        extents allow. None if no design has the same knobs."""
        theirs = self.translate(trace)
        if theirs is None:
            return None
        knobs = self._designs[theirs.design].knobs
        pairs = zip(theirs.decisions, knobs, strict=True)
        return Point(theirs.design, tuple(k.nearest(d) for d, k in pairs))

    def translate(self, trace: Any) -> Point | None:
        """The decisions of another workload's trace under the most similar design: not a point of this
        space, but :meth:`vectors` can compare it with them. None if no design has the same knobs."""
        decisions = trace_decisions(trace)
        form = form_of(decisions)
        alike = [(n, design) for n, design in enumerate(self._designs) if form == design.form]
        if not alike:
            return None
        kinds = instruction_kinds(trace[0])
        number, _ = min(alike, key=lambda entry: kinds_distance(entry[1].kinds, kinds))
        return Point(number, decisions)

    def _observe_open_knobs(self, seed: int) -> None:
        """Find options of open knobs."""
        for number, design in enumerate(self._designs):
            if all(k.kind != "open" for k in design.knobs):
                continue
            for draw in range(_OBSERVED):
                blank = Point(number, (None,) * len(design.knobs))
                made = self.instantiate(blank, seed + draw + 1)
                if made is not None:
                    self.observe(made[1])

    def observe(self, point: Point) -> None:
        """Record what TVM's sampler chose for open knobs."""
        knobs = self._designs[point.design].knobs
        for knob, decision in zip(knobs, point.decisions, strict=True):
            if knob.kind == "open" and decision is not None and decision not in knob.options:
                knob.options.append(decision)
                knob.options.sort(key=lambda d: (isinstance(d, tuple), d))


def _number(decision: Decision) -> float:
    if isinstance(decision, tuple):
        return float(np.log2(decision[-1]))
    return float(decision or 0)


@functools.lru_cache(maxsize=1 << 16)
def _logs(tile: tuple[int, ...]) -> tuple[list[float], list[float]]:
    """Logarithms of a tile's extents, and of the volume inside each loop but the outermost."""
    logs = [math.log2(part) for part in tile]
    inner = list(itertools.accumulate(reversed(logs)))[:-1]
    return logs, inner


def _with(point: Point, place: int, decision: Decision) -> Point:
    decisions = (*point.decisions[:place], decision, *point.decisions[place + 1 :])
    return Point(point.design, decisions)


@functools.lru_cache(maxsize=1 << 14)
def _moves(tile: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The tiles with one prime factor moved to another loop."""
    tiles = []
    for source, extent in enumerate(tile):
        for prime in _primes(extent):
            for target in range(len(tile)):
                if target != source:
                    moved = list(tile)
                    moved[source] //= prime
                    moved[target] *= prime
                    tiles.append(tuple(moved))
    return tiles


@functools.lru_cache(maxsize=1 << 12)
def _primes(number: int) -> tuple[int, ...]:
    return tuple(
        p
        for p in range(2, number + 1)
        if number % p == 0 and all(p % q for q in range(2, math.isqrt(p) + 1))
    )


def _beside(old: Decision, options: Sequence[Decision]) -> list[Decision]:
    if old not in options:
        return list(options[:1])
    place = options.index(old)
    return [options[n] for n in (place - 1, place + 1) if 0 <= n < len(options)]
