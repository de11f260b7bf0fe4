"""Convolutions and products in TE whose weights are packed for dot-product instructions.

:mod:`tvmtune.dot_instructions` says what these are. Data have channels last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmtune.dot_instructions import DotInstruction

NAME = "packed"
"""What the names of the sums start with."""
ROW_TILES = range(4, 17)
"""Rows of a register tile for which products are fast."""
TILE = 16
"""The number of groups of terms is rounded up to a multiple of this where both operands are data."""
FEWEST = 16
"""Extents below are left as they are, and products with them are not packed."""
_NOT_INLINED = {"meta_schedule.inline_rule": "disable"}
"""Attributes of a block that schedule rules would inline into the products, where its conversion would
hide what instructions compute."""


@dataclass(frozen=True)
class Window:
    """How a convolution moves over its input."""

    strides: tuple[int, ...]
    padding: tuple[int, ...]
    """Top, left, bottom, right, for a ``conv3d`` front, top, left, back, bottom, right; if negative, so
    many elements are not read."""
    dilation: tuple[int, ...]

    @classmethod
    def of(cls, attrs: Any) -> Window:
        """That of a ``relax.nn.conv2d`` or ``conv3d`` with these attributes, or of a ``conv1d``, as of
        one row."""
        steps, around, far = (
            tuple(int(n) for n in each) for each in (attrs.strides, attrs.padding, attrs.dilation)
        )
        if len(steps) == 1:
            return cls((1, *steps), (0, around[0], 0, around[1]), (1, *far))
        return cls(steps, around, far)


def blocked_weights(weights: np.ndarray, instruction: DotInstruction) -> np.ndarray:
    """Weights (O, KH, KW, I) as (O/lanes, KH, KW, I/terms, lanes, terms), with zeros for what is
    missing, as the instruction reads them."""
    lanes, terms = instruction.lanes, instruction.terms
    outs, rows, columns, ins = weights.shape
    padded = np.pad(weights, [(0, -outs % lanes), (0, 0), (0, 0), (0, -ins % terms)])
    blocks = padded.reshape(-1, lanes, rows, columns, padded.shape[3] // terms, terms)
    return np.ascontiguousarray(blocks.transpose(0, 2, 3, 4, 1, 5), instruction.weights)


def merged_weights(weights: np.ndarray, groups: int, merged: int) -> np.ndarray:
    """The weights (O, KH, KW, I) of a convolution with so many groups, each with I inputs, with every
    ``merged`` neighboring groups as one. Weights between different groups, and those of groups that the
    last one lacks, are zero."""
    if merged == 1:
        return weights
    own, ins = len(weights) // groups, weights.shape[3]
    outputs = -(-groups // merged) * merged * own
    result = np.zeros((outputs, *weights.shape[1:3], merged * ins), weights.dtype)
    for group in range(groups):
        outs, place = group * own, group % merged * ins
        result[outs : outs + own, ..., place : place + ins] = weights[outs : outs + own]
    return result


@dataclass(frozen=True)
class Storage:
    """How data are stored that must be padded."""

    nothing: Any
    """What stands for zero."""
    convert: Callable[[Any], Any] | None = None
    """From an element of the data to what is stored."""
    always: bool = False
    """Whether to convert data that need no padding, too."""
    value: Callable[[Any], Any] = lambda stored: stored
    """What an element that is stored means; also for data that are not padded, and for weights."""


def padded_rows(rows: int) -> int:
    """The least number of rows, at least ``rows``, with a tile in :data:`ROW_TILES`."""
    if rows < FEWEST:
        return rows
    return min(-(-rows // tile) * tile for tile in ROW_TILES)


def convolution(
    x: Any,
    w: Any,
    window: Window,
    output: tuple[int, ...],
    dtype: str,
    storage: Storage,
    groups: int = 1,
) -> Any:
    """Sums (N, H, W, O) in ``dtype`` of (N, H, W, C) data and :func:`blocked_weights`. ``output`` is
    the shape of the convolution's output; O is rounded up to whole blocks, and W as by
    :func:`padded_rows`. With several groups, each has whole blocks of outputs, and inputs that need no
    padding."""
    from tvm import te

    blocks, rows, columns, quads, lanes, terms = (int(n) for n in w.shape)
    outputs = blocks * lanes // groups
    (step_y, step_x), (far_y, far_x) = window.strides, window.dilation
    top, left, bottom, right = window.padding
    batch, height, width, _ = (int(n) for n in x.shape)
    pixels = padded_rows(output[2])
    read = (pixels - 1) * step_x + (columns - 1) * far_x + 1
    shape = (batch, top + height + bottom, max(left + width + right, read), groups * quads * terms)
    data = padded(x, (0, top, left, 0), shape, storage)
    ky, kx = te.reduce_axis((0, rows), "ky"), te.reduce_axis((0, columns), "kx")
    f, s = te.reduce_axis((0, quads), "f"), te.reduce_axis((0, terms), "s")

    def element(n: Any, y: Any, z: Any, c: Any) -> Any:
        channel = f * terms + s
        if groups > 1:
            channel += c // outputs * (quads * terms)
        one = data(n, y * step_y + ky * far_y, z * step_x + kx * far_x, channel)
        other = w(c // lanes, ky, kx, f, c % lanes, s)
        return te.sum(_product(one, other, dtype, storage), axis=[ky, kx, f, s])

    return te.compute((batch, output[1], pixels, blocks * lanes), element, name=f"{NAME}_conv2d")


def product(x: Any, w: Any, output: tuple[int, ...], dtype: str, storage: Storage) -> Any:
    """As :func:`convolution`: sums (..., M, N) of (..., M, K) data and weights (N, 1, 1, K)."""
    blocks, _, _, quads, lanes, terms = (int(n) for n in w.shape)

    def weight(outer: list[Any], block: Any, quad: Any, lane: Any, term: Any) -> Any:
        return w(block, 0, 0, quad, lane, term)

    return _matmul(x, weight, output, (blocks, quads, lanes, terms), dtype, storage)


def batched_product(
    x: Any, w: Any, output: tuple[int, ...], instruction: DotInstruction, storage: Storage
) -> Any:
    """Sums (..., M, N) of data (..., M, K) and (..., K, N), of which the second are packed first; their
    batch axes may be 1. M and N are rounded up as for weights, K to whole tiles."""
    from tvm import te

    lanes, terms = instruction.lanes, instruction.terms
    *batch, length, columns = (int(n) for n in w.shape)
    quads, blocks = -(-length // (TILE * terms)) * TILE, -(-columns // lanes)

    def pack(*at: Any) -> Any:
        *outer, block, quad, lane, term = at
        place, column = quad * terms + term, block * lanes + lane
        inside = [place < length] if length < quads * terms else []
        inside += [column < columns] if columns < blocks * lanes else []
        return _stored(w(*outer, place, column), inside, storage)

    packed = te.compute(
        (*batch, blocks, quads, lanes, terms), pack, name="weights", attrs=_NOT_INLINED
    )

    def weight(outer: list[Any], *at: Any) -> Any:
        extents = zip(outer, batch, output[:-2], strict=True)
        return packed(*(index if n == whole else 0 for index, n, whole in extents), *at)

    return _matmul(x, weight, output, (blocks, quads, lanes, terms), instruction.sums, storage)


def _matmul(
    x: Any,
    weight: Callable[..., Any],
    output: tuple[int, ...],
    packed: tuple[int, int, int, int],
    dtype: str,
    storage: Storage,
) -> Any:
    """Sums (..., M, N) of (..., M, K) data and the weights that ``weight`` returns for batch axes,
    block, quad, lane and term; ``packed`` has the extents of these four."""
    from tvm import te

    blocks, quads, lanes, terms = packed
    outer, rows = output[:-2], padded_rows(output[-2])
    data = padded(x, (0,) * len(output), (*outer, rows, quads * terms), storage)
    f, s = te.reduce_axis((0, quads), "f"), te.reduce_axis((0, terms), "s")

    def element(*at: Any) -> Any:
        *row, c = at
        one, other = data(*row, f * terms + s), weight(row[:-1], c // lanes, f, c % lanes, s)
        return te.sum(_product(one, other, dtype, storage), axis=[f, s])

    return te.compute((*outer, rows, blocks * lanes), element, name=f"{NAME}_matmul")


def _product(one: Any, other: Any, dtype: str, storage: Storage) -> Any:
    return storage.value(one).astype(dtype) * storage.value(other).astype(dtype)


def padded(x: Any, before: tuple[int, ...], shape: tuple[int, ...], storage: Storage) -> Any:
    """The data in an array of this shape, ``before`` elements from its start in each axis; ``x`` itself
    if that changes nothing."""
    from tvm import te

    own = tuple(int(n) for n in x.shape)
    if own == shape and not storage.always:
        return x

    def element(*at: Any) -> Any:
        place, inside = list(at), []
        for axis, (start, extent, whole) in enumerate(zip(before, own, shape, strict=True)):
            if start:
                place[axis] = at[axis] - start
                inside.append(place[axis] >= 0)
            if start + extent < whole:
                inside.append(place[axis] < extent)
        return _stored(x(*place), inside, storage)

    return te.compute(shape, element, name="pad", attrs=_NOT_INLINED if own == shape else {})


def _stored(value: Any, inside: list[Any], storage: Storage) -> Any:
    """An element of the data as it is stored, or nothing where a condition is false."""
    from tvm import tirx

    if storage.convert:
        value = storage.convert(value)
    return tirx.if_then_else(tirx.all(*inside), value, storage.nothing) if inside else value
