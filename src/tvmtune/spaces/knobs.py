"""Knobs: the sampling instructions of a trace, named by the loops that they act on.

Traces have the form that records store: ``[instructions, decisions]``, where an instruction is
``[kind, inputs, attributes, outputs]`` and a decision ``[index of its instruction, value]``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvmtune.spaces import rule_space, traces

if TYPE_CHECKING:
    import tvm

    from tvmtune.types import Implementation


@dataclass(frozen=True)
class Knob:
    """One sampling instruction of a trace."""

    name: str
    """``yuv.1``: loop 1 of block ``yuv``, before tiling; ``choice0``: the first categorical; or the
    name given by a space of tvmtune, in an annotation ``PACKAGE.name`` that holds the value."""
    kind: str
    """``tile``, ``choice`` or ``location``."""
    what: str
    """Description of what is sampled."""
    options: int | None
    """Number of possible values; None if it depends on other decisions."""
    decision: Any
    """The sampled value: the extents of a tile, the chosen candidate, or an index."""

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "what": self.what,
            "options": self.options,
        }


def knobs(trace: Any) -> list[Knob]:
    """The knobs of a trace in program order; post-processors sample nothing."""
    instructions, decisions = trace
    values = dict(decisions)
    labels: dict[str, str] = {}
    found: list[Knob] = []
    choices = 0
    design = traces.design(instructions)
    given = _given_names(design)
    for index, (kind, inputs, attributes, outputs) in enumerate(design):
        labels.update(_labels(kind, inputs, attributes, outputs, labels))
        value = values.get(index)
        if kind in ("SamplePerfectTile", "SamplePartitionedTile") and value is not None:
            extent = math.prod(value)
            innermost = int(attributes[-1]) if kind == "SamplePerfectTile" else 0
            what = f"{extent} into {len(value)}"
            if kind == "SamplePerfectTile":
                what += f", innermost at most {innermost}" if innermost > 0 else ""
                options = factorings(extent, len(value), innermost if innermost > 0 else extent)
            else:
                options = None
            usual = labels.get(inputs[0], inputs[0])
            found.append(Knob(_name(outputs, given, usual), "tile", what, options, value))
        elif kind == "SampleCategorical":
            candidates = list(attributes[0])
            chosen = candidates[value] if value is not None else None
            what = "one of " + ", ".join(map(str, candidates))
            usual = f"choice{choices}"
            found.append(
                Knob(_name(outputs, given, usual), "choice", what, len(candidates), chosen)
            )
            choices += 1
        elif kind == "SampleComputeLocation":
            name = f"{labels.get(inputs[0], inputs[0])} at"
            found.append(Knob(name, "location", "a loop to compute it in", None, value))
    return found


def _given_names(design: Sequence[Any]) -> dict[str, str]:
    """Names that annotations of tvmtune's spaces give to sampled variables."""
    return {
        inputs[1]: str(attributes[0]).partition(".")[2]
        for kind, inputs, attributes, _ in design
        if kind == "Annotate" and str(attributes[0]).startswith("tvmtune") and len(inputs) == 2
        if isinstance(inputs[1], str)
    }


def _name(outputs: Sequence[str], given: Mapping[str, str], usual: str) -> str:
    return next((given[each] for each in outputs if each in given), usual)


def designs(implementation: Implementation, target: tvm.target.Target) -> list[list[Knob]]:
    """The knobs of each design in the implementation's space. A design is one sequence of instructions,
    such as a tiling with or without a cache."""
    context = rule_space.tune_context(
        implementation.mod, target, implementation.space.generator(), seed=1
    )
    return [knobs(traces.to_json(sch)) for sch in context.generate_design_space()]


def size(found: list[Knob]) -> int:
    """The number of points that the knobs span; a knob with unknown options counts once."""
    return math.prod(knob.options or 1 for knob in found)


def configuration(trace: Any) -> str:
    """The decisions of a trace in one line: ``yuv.1=4x96x5 choice0=64``."""
    try:
        return " ".join(f"{k.name}={_short(k.decision)}" for k in knobs(trace))
    except (IndexError, TypeError, ValueError):  # a log may hold anything
        return ""


def factorings(extent: int, parts: int, innermost: int) -> int:
    """Number of ways to write ``extent`` as ``parts`` ordered factors, the last at most
    ``innermost``."""
    if parts == 1:
        return 1 if extent <= innermost else 0
    return sum(
        _compositions(extent // last, parts - 1) for last in divisors(extent) if last <= innermost
    )


def _compositions(extent: int, parts: int) -> int:
    """Number of ordered products of ``parts`` factors: stars and bars for each prime's exponent."""
    result = 1
    for exponent in _exponents(extent):
        result *= math.comb(exponent + parts - 1, parts - 1)
    return result


def divisors(extent: int) -> list[int]:
    """The divisors in ascending order."""
    small = [d for d in range(1, math.isqrt(extent) + 1) if extent % d == 0]
    return small + [extent // d for d in reversed(small) if d * d != extent]


def _exponents(extent: int) -> Iterator[int]:
    prime = 2
    while extent > 1:
        count = 0
        while extent % prime == 0:
            extent //= prime
            count += 1
        if count:
            yield count
        prime = prime + 1 if prime * prime <= extent else max(extent, prime + 1)


def _labels(
    kind: str, inputs: list[Any], attributes: list[Any], outputs: list[str], known: dict[str, str]
) -> dict[str, str]:
    """Names for the outputs of an instruction."""
    if kind == "GetSBlock":
        return {outputs[0]: str(attributes[0])}
    if kind == "GetLoops":
        block = known.get(inputs[0], inputs[0])
        return {loop: f"{block}.{position}" for position, loop in enumerate(outputs)}
    if kind == "Split":
        loop = known.get(inputs[0], inputs[0])
        return {part: f"{loop}.{position}" for position, part in enumerate(outputs)}
    if kind == "Fuse":
        return {outputs[0]: "*".join(known.get(loop, loop) for loop in inputs)}
    first = known.get(inputs[0], "") if inputs and isinstance(inputs[0], str) else ""
    return {output: f"{first}/{kind}" for output in outputs if first}


def _short(decision: Any) -> str:
    return "x".join(map(str, decision)) if isinstance(decision, list) else str(decision)
