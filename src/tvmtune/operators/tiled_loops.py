"""Steps that custom schedule rules for products on CPUs share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

LARGEST = 64
"""Extent of the innermost loop of a tile, at most."""


def tile(
    sch: Any, product: Any, spatial: Sequence[Any], terms: Sequence[Any], *innermost: Any
) -> tuple[Any, Any]:
    """Tile a product's loops in the order of TVM's rule, SSRSRS, with sizes to be searched. Returns the
    innermost of the loops around a tile of outputs with all terms of their sums, and the first loop
    over terms, which is directly within it. ``innermost``: loops that stay whole, inside all others."""
    outputs = [_split(sch, loop, 4) for loop in spatial]
    sums = [_split(sch, loop, 2) for loop in terms]
    first, second, third, register = zip(*outputs, strict=True)
    outer, inner = zip(*sums, strict=True)
    sch.reorder(*first, *second, *outer, *third, *inner, *register, *innermost)
    sch.annotate(product, "meta_schedule.tiling_structure", "SSRSRS")
    return second[-1], outer[0]


def _split(sch: Any, loop: Any, parts: int) -> list[Any]:
    sizes = sch.sample_perfect_tile(loop, n=parts, max_innermost_factor=LARGEST)
    return list(sch.split(loop, sizes))


def inline_epilogue(sch: Any, block: Any) -> Any:
    """Inline what follows ``block`` into the kernel's last block, which is returned."""
    last = _inline_consumers(sch, block)
    # Of the other values that it reads, some are computed in the same kernel, such as a residual that
    # is reshaped.
    while others := [p for p in sch.get_producers(last) if not _is_same(sch, p, block)]:
        for each in others:
            sch.compute_inline(each)
    return last


def _inline_consumers(sch: Any, block: Any) -> Any:
    while True:
        following = sch.get_consumers(block)
        # A value that is read twice, as by a GELU, is followed by several blocks.
        inner = [each for each in following if sch.get_consumers(each)]
        if not inner:
            return following[0]
        for each in inner:
            sch.compute_inline(each)


def _is_same(sch: Any, one: Any, other: Any) -> bool:
    return bool(sch.get_sref(one).same_as(sch.get_sref(other)))


def lanes(block: Any) -> int:
    """The extent of a block's last axis of outputs."""
    from tvm import tirx

    spatial = [v for v in block.iter_vars if v.iter_type == tirx.IterVar.DataPar]
    return int(spatial[-1].dom.extent)
