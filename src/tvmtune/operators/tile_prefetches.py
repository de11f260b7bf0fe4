"""Which weights a strip of tiles prefetches while it is computed.

Weights come from memory strip by strip: the first rows wait for those of their columns, the others find
them in the second-level cache. A core that computes the other rows could load the next columns' weights
meanwhile, but its own prefetchers do not foresee them. So each strip prefetches a part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvmtune.operators import linear_indices, prefetch
from tvmtune.types import product

LEAST = 1 << 20
"""Bytes of weights below which it is not worth while: they are still cached."""


@dataclass(frozen=True)
class Ahead:
    """The part that a strip prefetches."""

    start: Any
    """Index of its first element."""
    lines: int
    """Cache lines per step, an instruction for each tile of sums."""


def ahead(
    buffer: Any, start: Any, length: int, steps: int, enclosing: Sequence[Any]
) -> Ahead | None:
    """For a strip of so many steps that reads ``length`` elements of weights from ``start`` on, within
    loops, the outermost first. None if it is not worth while."""
    size = buffer.dtype.itemsize
    if prefetch.bytes_of(buffer) < LEAST or length * size > prefetch.CHUNK:
        return None
    strip, count = _strip(start, enclosing)
    if count < prefetch.ROWS:
        return None
    lines = -(-length * size // (prefetch.LINE * steps * count))
    part = lines * steps * prefetch.LINE // size
    return Ahead(start + length + strip * part, lines)


def _strip(weights: Any, enclosing: Sequence[Any]) -> tuple[Any, int]:
    """Which of the strips that read the same weights in turn this one is, and how many there are."""
    from tvm import tirx

    rows: list[tuple[Any, int]] = []
    for loop in reversed(enclosing):
        extent = linear_indices.constant(loop.extent)
        if extent is None or loop.kind not in (tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL):
            break
        if linear_indices.uses(weights, [loop.loop_var]):
            if same := _same(weights, loop.loop_var):
                rows.insert(0, (loop.loop_var % same, same))
            break
        rows.insert(0, (loop.loop_var, extent))
    return linear_indices.position(rows, weights.ty.dtype), product([extent for _, extent in rows])


def _same(value: Any, variable: Any) -> int:
    """For how many iterations in turn a value stays the same that depends on a quotient of the loop's
    variable alone; else 0."""
    from tvm import tirx
    from tvm_ffi import structural_walk

    quotients: list[Any] = []
    structural_walk(value, (tirx.FloorDiv, quotients.append))
    if len(quotients) != 1 or not quotients[0].a.same_as(variable):
        return 0
    reads: list[bool] = []
    structural_walk(value, (tirx.Var, lambda each: reads.append(each.same_as(variable))))
    return (linear_indices.constant(quotients[0].b) or 0) if sum(reads) == 1 else 0
