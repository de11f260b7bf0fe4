"""Designs of a MetaSchedule space: their knobs, and the decisions that traces record for them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tvmtune.spaces import traces
from tvmtune.spaces.knobs import divisors, factorings

if TYPE_CHECKING:
    from tvmtune.spaces.gpu_limits import GpuLimits

Decision = tuple[int, ...] | int | None
"""Extents of a tile, index of a choice, or index of a loop; None leaves it to TVM's sampler."""
Form = tuple[tuple[str, int], ...]
"""Kind and number of factors of each knob: designs of equal form take the same decisions."""
MAX_OPTIONS = 1 << 16
"""Tiles with more options than this are drawn by TVM's sampler, not listed."""


@dataclass
class KnobOptions:
    """What one sampling instruction chooses from."""

    kind: Literal["tile", "choice", "open"]
    """``open``: the options depend on other decisions."""
    parts: int
    """Factors of a tile."""
    options: list[Decision]
    """All of them; for an open knob, those that TVM's sampler was seen to choose."""
    innermost: int = 0
    """Maximum extent of a tile's innermost loop."""

    @property
    def columns(self) -> int:
        """Columns of a vector of decisions."""
        return 2 * self.parts - 1 if self.kind == "tile" else 1

    def nearest(self, decision: Decision) -> Decision:
        """The option most similar to a decision of another workload."""
        if self.kind != "tile" or not isinstance(decision, tuple):
            return decision if decision in self.options else None if self.kind == "open" else 0
        wanted = [math.log2(part) for part in decision]

        def miss(option: Decision) -> float:
            assert isinstance(option, tuple)
            # The inner loops matter; the outermost takes what remains.
            return sum(
                abs(math.log2(part) - want) * (level + 1)
                for level, (part, want) in enumerate(zip(option[1:], wanted[1:], strict=True))
            )

        return min(self.options, key=miss)


@dataclass
class SpaceDesign:
    """A sequence of schedule instructions, some of which sample."""

    trace: Any
    samples: list[Any]
    """The sampling instructions."""
    knobs: list[KnobOptions]
    """One for each sampling instruction."""
    limits: GpuLimits | None = None
    """Limits of its tiles on a GPU."""
    kinds: Counter[str] = field(default_factory=Counter)
    """Number of instructions of each kind, which identifies designs across workloads."""

    @staticmethod
    def of(trace: Any, limits: GpuLimits | None) -> SpaceDesign:
        samples = [inst for inst in trace.insts if inst.kind.name in traces.SAMPLING]
        kinds = Counter(str(inst.kind.name) for inst in trace.insts)
        knobs = [_knob(inst, plain_decision(trace.get_decision(inst))) for inst in samples]
        return SpaceDesign(trace, samples, knobs, limits, kinds)

    @property
    def form(self) -> Form:
        return tuple(("tile", k.parts) if k.kind == "tile" else ("other", 0) for k in self.knobs)

    @property
    def size(self) -> int | None:
        """Number of points; None if it depends on decisions."""
        if any(k.kind == "open" for k in self.knobs):
            return None
        return math.prod(len(k.options) for k in self.knobs)


def _knob(inst: Any, decision: Decision) -> KnobOptions:
    if inst.kind.name == "SamplePerfectTile" and isinstance(decision, tuple):
        parts, innermost = len(decision), int(inst.attrs[1])
        extent = math.prod(decision)
        most = innermost if innermost > 0 else extent
        if factorings(extent, parts, most) <= MAX_OPTIONS:
            options: list[Decision] = list(_factorizations(extent, parts, most))
            return KnobOptions("tile", parts, options, most)
    if inst.kind.name == "SampleCategorical":
        return KnobOptions("choice", 0, list(range(len(inst.attrs[0]))))
    return KnobOptions("open", 0, [])


def plain_decision(decision: Any) -> Decision:
    """A decision of TVM in Python's types."""
    if decision is None:
        return None
    if hasattr(decision, "__len__"):
        return tuple(int(part) for part in decision)
    return int(decision)


def design_key(instructions: Any) -> str:
    """Text of the instructions before the post-processors."""
    return json.dumps(traces.design(instructions), separators=(",", ":"))


def instruction_kinds(instructions: Any) -> Counter[str]:
    """Number of instructions of each kind, without the post-processors."""
    return Counter(str(inst[0]) for inst in traces.design(instructions))


def kinds_distance(one: Counter[str], other: Counter[str]) -> int:
    return sum(abs(one[kind] - other[kind]) for kind in one | other)


def trace_decisions(trace: Any) -> tuple[Decision, ...]:
    """The decisions that a recorded trace stores."""
    instructions, decisions = trace
    values = dict(decisions)
    return tuple(
        plain_decision(values.get(index))
        for index, inst in enumerate(traces.design(instructions))
        if inst[0] in traces.SAMPLING
    )


def form_of(decisions: tuple[Decision, ...]) -> Form:
    return tuple(("tile", len(d)) if isinstance(d, tuple) else ("other", 0) for d in decisions)


def _factorizations(extent: int, parts: int, innermost: int) -> Iterator[tuple[int, ...]]:
    """The ways to write ``extent`` as a product of ``parts`` factors, the last at most
    ``innermost``."""
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
