"""A space as points: one decision for each sampling instruction of one of its designs.

MetaSchedule's spaces are designs, sequences of schedule instructions of which some sample. A point
names a design and what its samples are to be. Points are cheap: thousands are drawn, changed and
compared in the time in which one is replayed as a schedule.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.graph import spaces, traces
from tvmtune.graph.gpu_limits import Limits, limits
from tvmtune.graph.knobs import divisors, factorings

if TYPE_CHECKING:
    import random

    import tvm
    from tvm.s_tir import Schedule

    from tvmtune.types import Implementation

Decision = tuple[int, ...] | int | None
"""Extents of a tile, index of a choice, or index of a loop; None leaves it to TVM's sampler."""
_TILE, _CHOICE, _OPEN, _OTHER = "tile", "choice", "open", "other"
_LEVELS = 6
"""Volumes in a vector: of the four levels of spatial tiles, and of the two of reductions."""
_MOST = 1 << 16
"""Options up to which a knob's list is made; beyond, TVM's sampler draws."""
_TRIES = 300
"""Draws of which one that fits is taken, if there is any."""
_OBSERVED = 6
"""Draws of each design by which the options of open knobs are found."""


@dataclass(frozen=True)
class Point:
    """A design of the space and a decision for each of its samples, in program order."""

    design: int
    decisions: tuple[Decision, ...]


@dataclass
class _Knob:
    kind: str
    parts: int
    options: list[Decision]
    """All of them, or for an open knob those that TVM's sampler was seen to take."""
    innermost: int = 0
    """The largest extent that a tile's innermost loop may have."""


@dataclass
class _Design:
    trace: Any
    samples: list[Any]
    """The sampling instructions."""
    knobs: list[_Knob]
    limits: Limits | None = None
    """What its tiles have to keep to on a GPU."""
    kinds: Counter[str] = field(default_factory=Counter)
    """How often each kind of instruction occurs: what tells designs apart across workloads."""

    @property
    def form(self) -> tuple[tuple[str, int], ...]:
        return tuple((_TILE, k.parts) if k.kind == _TILE else (_OTHER, 0) for k in self.knobs)

    @property
    def size(self) -> int | None:
        if any(k.kind == _OPEN for k in self.knobs):
            return None
        return math.prod(len(k.options) for k in self.knobs)


class Points:
    """The points of one implementation's space.

    Raises whatever TVM raises where the space cannot be generated.
    """

    def __init__(
        self, implementation: Implementation, target: tvm.target.Target, *, seed: int, threads: int
    ) -> None:
        self.mod = implementation.mod
        self.context = spaces.tune_context(
            self.mod, target, implementation.space.generator(), seed=seed, threads=threads
        )
        generated = self.context.generate_design_space()
        self._postprocs = list(self.context.space_generator.postprocs)
        self._designs: list[_Design] = []
        self._by_key: dict[str, int] = {}
        for number, sch in enumerate(generated):
            self._by_key[_key(traces.to_json(sch)[0])] = number
            trace = sch.trace.simplified(True)
            self._designs.append(_design(trace, limits(self.mod, trace, target)))
        self._open(seed)

    @property
    def signature(self) -> str:
        """Equal for spaces whose vectors mean the same, such as those of two convolutions."""
        return json.dumps([design.form for design in self._designs])

    @property
    def size(self) -> int | None:
        """How many points there are; None if that depends on other decisions."""
        sizes = [design.size for design in self._designs]
        return None if None in sizes else sum(s for s in sizes if s is not None)

    def __iter__(self) -> Iterator[Point]:
        """All points in order, the last knob fastest; of open knobs, the options seen so far."""
        for number, design in enumerate(self._designs):
            for decisions in itertools.product(*(k.options or [None] for k in design.knobs)):
                yield Point(number, decisions)

    def draw(self, rng: random.Random) -> Point:
        """A design, then each decision, uniformly among those that fit."""
        number = rng.randrange(len(self._designs))
        knobs = self._designs[number].knobs
        for _ in range(_TRIES):
            drawn = Point(
                number, tuple(None if k.kind == _OPEN else rng.choice(k.options) for k in knobs)
            )
            if self.fits(drawn):
                break
        return drawn

    def fits(self, point: Point) -> bool:
        """Whether the device may have a kernel of it, as far as its numbers tell."""
        found = self._designs[point.design].limits
        return found is None or found.allow(point.decisions)

    def mutate(self, point: Point, rng: random.Random) -> Point:
        """Another decision for one knob; a tile mostly moves one factor to another of its loops."""
        knobs = self._designs[point.design].knobs
        able = [n for n, k in enumerate(knobs) if len(k.options) > 1]
        if not able:
            return self.draw(rng)
        place = rng.choice(able)
        knob, old = knobs[place], point.decisions[place]
        new: Decision = None
        if knob.kind == _TILE and isinstance(old, tuple) and rng.random() < 0.7:
            near = [tile for tile in _moves(old) if tile[-1] <= knob.innermost]
            new = rng.choice(near) if near else None
        if new is None:
            new = rng.choice([o for o in knob.options if o != old])
        return _with(point, place, new)

    def cross(self, one: Point, other: Point, rng: random.Random) -> Point:
        """Each decision from either parent; parents of two designs have no common children."""
        if one.design != other.design:
            return self.mutate(one, rng)
        pairs = zip(one.decisions, other.decisions, strict=True)
        return Point(one.design, tuple(rng.choice(pair) for pair in pairs))

    def neighbours(self, point: Point) -> list[Point]:
        """One step along each coordinate: a factor moved, the next choice, the next location."""
        found = []
        for place, knob in enumerate(self._designs[point.design].knobs):
            old = point.decisions[place]
            steps: Sequence[Decision]
            if knob.kind == _TILE and isinstance(old, tuple):
                steps = [tile for tile in _moves(old) if tile[-1] <= knob.innermost]
            else:
                steps = _beside(old, knob.options)
            found += [_with(point, place, new) for new in steps]
        return [each for each in found if self.fits(each)]

    def vectors(self, points: Sequence[Point]) -> np.ndarray:
        """(points, columns) float32: the design, logarithms of tile extents, choices, locations, and
        for each level of the tiles the logarithm of its volume."""
        width = 1 + max((sum(_columns(k) for k in d.knobs) for d in self._designs), default=0)
        table = np.full((len(points), width + _LEVELS), np.nan, "float32")
        for row, point in enumerate(points):
            values: list[float] = [point.design]
            levels = [0.0] * _LEVELS
            for knob, decision in zip(
                self._designs[point.design].knobs, point.decisions, strict=True
            ):
                if knob.kind == _TILE and isinstance(decision, tuple):
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

    def realise(self, point: Point, seed: int) -> tuple[Schedule, Point] | None:
        """The schedule of a point, and the point as it turned out: TVM mends a decision that the
        decisions before it made impossible. None where it does not fit, or a post-processor refuses
        it."""
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
        schedule = spaces.replay(self.mod, trace, self._postprocs, seed)
        if schedule is None:
            return None
        taken = [
            _plain(schedule.trace.get_decision(inst))
            for inst in schedule.trace.insts
            if inst.kind.name in traces.SAMPLING
        ]
        return schedule, Point(point.design, tuple(taken[: len(point.decisions)]))

    def recall(self, trace: Any) -> Point | None:
        """The point of a recorded trace; None if it stems from no design of this space."""
        number = self._by_key.get(_key(trace[0]))
        return None if number is None else Point(number, _decisions(trace))

    def adapt(self, trace: Any) -> Point | None:
        """The point that is most like a trace of another workload: the same inner tiles as far as the
        extents allow. None if no design samples the same things."""
        theirs = self.translate(trace)
        if theirs is None:
            return None
        knobs = self._designs[theirs.design].knobs
        pairs = zip(theirs.decisions, knobs, strict=True)
        return Point(theirs.design, tuple(_nearest(d, k) for d, k in pairs))

    def translate(self, trace: Any) -> Point | None:
        """A trace of another workload under the design that is most like its own, its decisions as they
        are: no point of this space, but one that :meth:`vectors` can compare with them. None if no
        design samples the same things."""
        decisions = _decisions(trace)
        form = tuple((_TILE, len(d)) if isinstance(d, tuple) else (_OTHER, 0) for d in decisions)
        alike = [
            (number, design) for number, design in enumerate(self._designs) if form == design.form
        ]
        if not alike:
            return None
        kinds = _kinds(trace[0])
        number, _ = min(alike, key=lambda entry: _distance(entry[1].kinds, kinds))
        return Point(number, decisions)

    def _open(self, seed: int) -> None:
        """Find out what open knobs may be."""
        for number, design in enumerate(self._designs):
            if all(k.kind != _OPEN for k in design.knobs):
                continue
            for draw in range(_OBSERVED):
                blank = Point(number, (None,) * len(design.knobs))
                found = self.realise(blank, seed + draw + 1)
                if found is not None:
                    self.observe(found[1])

    def observe(self, point: Point) -> None:
        """Remember what TVM's sampler chose for open knobs."""
        knobs = self._designs[point.design].knobs
        for knob, decision in zip(knobs, point.decisions, strict=True):
            if knob.kind == _OPEN and decision is not None and decision not in knob.options:
                knob.options.append(decision)
                knob.options.sort(key=lambda d: (isinstance(d, tuple), d))


def _design(trace: Any, bounds: Limits | None) -> _Design:
    samples = [inst for inst in trace.insts if inst.kind.name in traces.SAMPLING]
    knobs = []
    for inst in samples:
        decision = _plain(trace.get_decision(inst))
        if inst.kind.name == "SamplePerfectTile" and isinstance(decision, tuple):
            parts, innermost = len(decision), int(inst.attrs[1])
            extent = math.prod(decision)
            most = innermost if innermost > 0 else extent
            if factorings(extent, parts, most) <= _MOST:
                options: list[Decision] = list(_factorings(extent, parts, most))
                knobs.append(_Knob(_TILE, parts, options, most))
                continue
        if inst.kind.name == "SampleCategorical":
            knobs.append(_Knob(_CHOICE, 0, list(range(len(inst.attrs[0])))))
        else:
            knobs.append(_Knob(_OPEN, 0, []))
    kinds = Counter(str(inst.kind.name) for inst in trace.insts)
    return _Design(trace, samples, knobs, bounds, kinds)


def _columns(knob: _Knob) -> int:
    return 2 * knob.parts - 1 if knob.kind == _TILE else 1


def _number(decision: Decision) -> float:
    if isinstance(decision, tuple):
        return float(np.log2(decision[-1]))
    return float(decision or 0)


@functools.lru_cache(maxsize=1 << 16)
def _logs(tile: tuple[int, ...]) -> tuple[list[float], list[float]]:
    """Logarithms of a tile's extents, and of what each loop but the outermost holds in all."""
    logs = [math.log2(part) for part in tile]
    inner = list(itertools.accumulate(reversed(logs)))[:-1]
    return logs, inner


def _plain(decision: Any) -> Decision:
    if decision is None:
        return None
    if hasattr(decision, "__len__"):
        return tuple(int(part) for part in decision)
    return int(decision)


def _with(point: Point, place: int, decision: Decision) -> Point:
    decisions = (*point.decisions[:place], decision, *point.decisions[place + 1 :])
    return Point(point.design, decisions)


@functools.lru_cache(maxsize=1 << 14)
def _moves(tile: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The tiles in which one prime factor has moved to another loop."""
    found = []
    for source, extent in enumerate(tile):
        for prime in _primes(extent):
            for target in range(len(tile)):
                if target != source:
                    moved = list(tile)
                    moved[source] //= prime
                    moved[target] *= prime
                    found.append(tuple(moved))
    return found


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


def _factorings(extent: int, parts: int, innermost: int) -> Iterator[tuple[int, ...]]:
    """The ways to write ``extent`` as a product of ``parts`` factors, the last within ``innermost``."""
    every = divisors(extent)

    def outer(rest: int, count: int) -> Iterator[tuple[int, ...]]:
        if count == 1:
            yield (rest,)
            return
        for d in every:
            if rest % d == 0:
                for others in outer(rest // d, count - 1):
                    yield (*others, d)

    for last in every:
        if last <= innermost and parts > 1:
            for others in outer(extent // last, parts - 1):
                yield (*others, last)
    if parts == 1 and extent <= innermost:
        yield (extent,)


def _key(instructions: Any) -> str:
    """Text of the instructions before the post-processors."""
    return json.dumps(traces.design(instructions), separators=(",", ":"))


def _kinds(instructions: Any) -> Counter[str]:
    return Counter(str(inst[0]) for inst in traces.design(instructions))


def _decisions(trace: Any) -> tuple[Decision, ...]:
    instructions, decisions = trace
    values = dict(decisions)
    return tuple(
        _plain(values.get(index))
        for index, inst in enumerate(traces.design(instructions))
        if inst[0] in traces.SAMPLING
    )


def _distance(one: Counter[str], other: Counter[str]) -> int:
    return sum(abs(one[kind] - other[kind]) for kind in one | other)


def _nearest(decision: Decision, knob: _Knob) -> Decision:
    """What the knob offers that is most like a decision of another workload."""
    if knob.kind != _TILE or not isinstance(decision, tuple):
        return decision if decision in knob.options else None if knob.kind == _OPEN else 0
    wanted = [math.log2(part) for part in decision]

    def miss(option: Decision) -> float:
        assert isinstance(option, tuple)
        # The inner loops decide; the outermost takes what is left.
        return sum(
            abs(math.log2(part) - want) * (level + 1)
            for level, (part, want) in enumerate(zip(option[1:], wanted[1:], strict=True))
        )

    return min(knob.options, key=miss)
