"""GEMM and ALU instructions on NumPy arrays, a whole instruction at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tvmtune_vta.hardware import bounds
from tvmtune_vta.hardware.bitfields import Columns
from tvmtune_vta.hardware.bounds import Indices
from tvmtune_vta.hardware.isa import Alu, AluOp, Gemm, Loops

Sums = npt.NDArray[np.int32]
Values = npt.NDArray[np.int8]

CHUNK = 1 << 15
"""Steps computed at once."""


class ShiftError(ValueError):
    """A shift amount that designs treat differently."""


def gemm(loops: Gemm, uops: Columns, acc: Sums, inp: Values, wgt: Values) -> None:
    """Update ``acc`` (depth, batch, block) in place. Sums are modulo 2^32, so they are grouped by
    weight regardless of order. A sum of products is below 2^24 and therefore exact in float32."""
    if loops.reset:
        acc[bounds.touched_elements(loops, "dst", uops["dst"])] = 0
        return
    for steps in _chunks(loops):
        dst, src, tile = (
            bounds.indices_at(loops, name, uops[name], steps).reshape(-1)
            for name in ("dst", "src", "wgt")
        )
        sequence = np.argsort(tile, kind="stable")
        edges = np.flatnonzero(np.diff(tile[sequence])) + 1
        for group in np.split(sequence, edges):
            weights = wgt[tile[group[0]]].astype(np.float32)
            products = (inp[src[group]].astype(np.float32) @ weights.T).astype(np.int32)
            into = dst[group]
            if len(np.unique(into)) == len(into):
                acc[into] += products
            else:
                np.add.at(acc, into, products)


def alu(loops: Alu, uops: Columns, acc: Sums) -> None:
    """Update ``acc`` in place, as if step by step. Raises :class:`ShiftError` for amounts outside
    -16..15, and for negative amounts from an accumulator, which the Chisel and HLS designs treat
    differently."""
    if loops.op is AluOp.SHR and loops.use_imm and not -16 <= loops.imm <= 15:
        raise ShiftError(f"it shifts by {loops.imm}: must be -16 to 15")
    for steps in _chunks(loops):
        dst, src = (
            bounds.indices_at(loops, name, uops[name], steps).reshape(-1) for name in ("dst", "src")
        )
        if loops.use_imm:
            src = dst
        for part in _independent(dst, src):
            other = np.int32(loops.imm) if loops.use_imm else acc[src[part]]
            acc[dst[part]] = _apply(loops.op, acc[dst[part]], other)


def _apply(op: AluOp, left: Sums, right: Sums | np.int32) -> Sums:
    if op is AluOp.MIN:
        return np.minimum(left, right)
    if op is AluOp.MAX:
        return np.maximum(left, right)
    if op is AluOp.ADD:
        return left + right
    if op is AluOp.MUL:
        return left * right
    if isinstance(right, np.int32):
        return left >> right if right >= 0 else left << -right
    if np.any((right < 0) | (right > 15)):
        amount = int(right[(right < 0) | (right > 15)].flat[0])
        raise ShiftError(f"it shifts by {amount} from an accumulator: must be 0 to 15")
    return left >> right


def _chunks(loops: Loops) -> Iterator[Indices]:
    """Iterations of both loops, numbered consecutively, in chunks of about :data:`CHUNK` steps."""
    total = loops.iter_out * loops.iter_in
    size = max(1, CHUNK // (loops.uop_end - loops.uop_bgn))
    for first in range(0, total, size):
        yield np.arange(first, min(total, first + size))


def _independent(dst: Indices, src: Indices) -> Iterator[slice]:
    """Split steps into parts in which no step reads or writes what an earlier one has written."""
    count = len(dst)
    if len(np.unique(dst)) == count and (src is dst or not np.isin(src[src != dst], dst).any()):
        yield slice(0, count)
        return
    written: dict[int, int] = {}
    first = 0
    for step, (into, source) in enumerate(zip(dst.tolist(), src.tolist(), strict=True)):
        if written.get(into, -1) >= first or written.get(source, -1) >= first:
            yield slice(first, step)
            first = step
        written[into] = step
    yield slice(first, count)
