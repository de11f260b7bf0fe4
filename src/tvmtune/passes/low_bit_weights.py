"""Products of few rows with weights that were quantized to 4 or 8 bits keep them in memory as such.

A step of a language model takes as long as reading its weights does, and those of 4 bits are an eighth
of float32's. Importers dequantize such weights, whatever the format of the file. This pass finds the
steps that the values of a block lie on again: so all formats are alike, and the arithmetic is that of
the floating-point weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune import cpu_features
from tvmtune.passes.bindings import bindings, is_constant, operator_of, rebind
from tvmtune.passes.blocks import LEFT_ALONE
from tvmtune.passes.constants import share, values
from tvmtune.passes.fusable_calls import call_fusable
from tvmtune.static_shapes import static_shape
from tvmtune.types import product

if TYPE_CHECKING:
    import tvm

RULE = "tvmtune.cpu_low_bit_weights"
"""Rule of the product, which schedules all stages."""
MOST_ROWS = 8
"""Products of more rows take as long with weights in float32."""
FEWEST_WEIGHTS = 1 << 16
"""Fewer stay in a core's cache."""
BLOCKS = (256, 128, 64, 32, 16)
"""Weights of a column that share a scale, the largest that fits first; those of 8 bits may also be
all of a column."""
_SAMPLE = 64
"""Blocks of a matrix that are examined before all others."""
_CHUNK = 1 << 22
"""Weights that are examined at a time."""
_EXACT, _TYPICAL = 4e-7, 1e-6
"""How far a weight may be from its step, relative to itself, or to the median of its block: the
rounding of float32, in which file and importer multiply."""


@dataclass(frozen=True)
class Levels:
    """A matrix of K x N as ``scales * (numbers - zeros)``, by blocks of a column."""

    bits: int
    block: int
    numbers: np.ndarray
    """(N, K), uint8"""
    scales: np.ndarray
    """(N, K / block), float32"""
    zeros: np.ndarray
    """The same shape, int8 or float32: the number that stands for 0."""


def pack(mod: tvm.IRModule, target: dict[str, Any]) -> tvm.IRModule:
    """``mod`` with such products; itself if there are none. CPUs without AVX2 get none: nobody has
    measured them there."""
    if not cpu_features.has(target, "avx2"):
        return mod
    unit = cpu_features.vector_unit(target)
    cores = int(target.get("num-cores") or 1)
    made: dict[Any, Callable[[Any], Any]] = {}
    for binding in bindings(mod):
        call = binding.value
        if not _may_suit(call, unit.lanes):
            continue
        found = levels(values(call.args[1]))
        if found is not None:
            vectors = vectors_of(len(found.numbers) // unit.lanes, _rows(call), cores)
            made[binding.var] = partial(_call, call, found, unit.lanes * vectors)
    return rebind(mod, made)


def vectors_of(count: int, rows: int, cores: int) -> int:
    """Of ``count`` vectors of columns, those of a tile that all cores get about as many of."""

    def waste(vectors: int) -> float:
        tiles = count // vectors
        return -(-tiles // cores) * cores / tiles * (1 + 0.1 / vectors)

    sizes = [n for n in (4, 2, 1) if count % n == 0 and n * rows <= 16]
    return min(sizes, key=waste)


def _rows(call: Any) -> int:
    return product((static_shape(call.args[0]) or [])[:-1])


def _may_suit(call: Any, lanes: int) -> bool:
    """Whether it is a product of few rows of float32 with a constant matrix of whole vectors."""
    if operator_of(call) != "matmul" or not is_constant(call.args[1]):
        return False
    x, weight = map(static_shape, call.args)
    if x is None or weight is None or len(weight) != 2:
        return False
    if any(str(each.ty.dtype) != "float32" for each in (*call.args, call)):
        return False
    terms, columns = weight
    return (
        _rows(call) <= MOST_ROWS
        and terms * columns >= FEWEST_WEIGHTS
        and columns % lanes == 0
        and terms % min(BLOCKS) == 0
    )


def _call(call: Any, found: Levels, columns: int, mutator: Any) -> Any:
    numbers = _by_tiles(found.numbers, columns)
    if found.bits == 4:
        numbers = numbers[:, 0::2] | numbers[:, 1::2] << 4
    constants = [
        share(np.ascontiguousarray(each))
        for each in (numbers, _by_tiles(found.scales, columns), _by_tiles(found.zeros, columns))
    ]
    x = mutator.visit_expr(call.args[0])
    program = partial(_program, found.bits)
    return call_fusable(mutator.builder_, program, x, *constants, name="low_bit_product")


def _by_tiles(matrix: np.ndarray, columns: int) -> np.ndarray:
    """(N, K) as (N / columns, K, columns)."""
    return matrix.reshape(-1, columns, matrix.shape[1]).transpose(0, 2, 1)


def _program(bits: int, x: Any, numbers: Any, scales: Any, zeros: Any) -> Any:
    """The product in TE: of each block the sum of its numbers, weighted by the data, and the sum of
    these data, times the zero; both times the scale."""
    from tvm import te

    *outer, terms = (int(n) for n in x.shape)
    tiles, blocks, columns = (int(n) for n in scales.shape)
    rows, block, each = product(outer), terms // blocks, 8 // bits

    def compute(shape: list[int], element: Callable[..., Any], name: str, **attrs: Any) -> Any:
        return te.compute(shape, element, name=name, attrs={**LEFT_ALONE, **attrs})

    def at(row: Any, term: Any) -> Any:
        place: list[Any] = []
        for extent in reversed(outer):
            place.insert(0, row % extent)
            row = row // extent
        return x[(*place, term)]

    k = te.reduce_axis((0, block), "k")
    totals = compute([rows, blocks], lambda m, b: te.sum(at(m, b * block + k), axis=k), "totals")
    j = te.reduce_axis((0, block // each), "j")

    def weighted(t: Any, b: Any, m: Any, lane: Any) -> Any:
        byte = numbers[t, b * (block // each) + j, lane].astype("int32")
        parts = [byte] if each == 1 else [byte & 15, byte >> 4]
        products = [
            part.astype("float32") * at(m, b * block + j * each + n) for n, part in enumerate(parts)
        ]
        return te.sum(products[0] if each == 1 else products[0] + products[1], axis=j)

    sums = compute([tiles, blocks, rows, columns], weighted, "sums", schedule_rule=RULE)
    b = te.reduce_axis((0, blocks), "b")

    def whole(t: Any, m: Any, lane: Any) -> Any:
        zero = zeros[t, b, lane].astype("float32")
        return te.sum((sums[t, b, m, lane] - zero * totals[m, b]) * scales[t, b, lane], axis=b)

    products = compute([tiles, rows, columns], whole, "products")

    def result(*place: Any) -> Any:
        *head, column = place
        row: Any = 0
        for index, extent in zip(head, outer, strict=True):
            row = row * extent + index
        return products[column // columns, row, column % columns]

    return te.compute([*outer, tiles * columns], result, name="low_bit_product", attrs=LEFT_ALONE)


def levels(weight: np.ndarray) -> Levels | None:
    """The steps that the weights (K, N) lie on, or None."""
    terms = len(weight)
    columns = weight.T
    for bits, sizes in ((4, BLOCKS), (8, (terms, *BLOCKS))):
        for block in sizes:
            if terms % block:
                continue
            if _steps(_sample(columns, block), bits) is None:
                continue
            if (found := _all_steps(columns, block, bits)) is not None:
                return found
    return None


def _sample(columns: np.ndarray, block: int) -> np.ndarray:
    """Some blocks, (count, block)."""
    count, terms = columns.shape
    rng = np.random.default_rng(0)
    rows = rng.integers(0, count, _SAMPLE)
    starts = rng.integers(0, terms // block, _SAMPLE) * block
    return np.stack([columns[r, s : s + block] for r, s in zip(rows, starts, strict=True)])


def _all_steps(columns: np.ndarray, block: int, bits: int) -> Levels | None:
    count, terms = columns.shape
    numbers = np.empty((count, terms), np.uint8)
    scales = np.empty((count, terms // block), np.float32)
    zeros = np.empty_like(scales)
    step = max(1, _CHUNK // terms)
    for start in range(0, count, step):
        part = np.ascontiguousarray(columns[start : start + step]).reshape(-1, block)
        found = _steps(part, bits)
        if found is None:
            return None
        shape = (-1, terms // block)
        numbers[start : start + step] = found[0].reshape(-1, terms)
        scales[start : start + step] = found[1].reshape(shape)
        zeros[start : start + step] = found[2].reshape(shape)
    small = zeros.astype(np.int8)
    return Levels(bits, block, numbers, scales, small if (small == zeros).all() else zeros)


def _steps(blocks: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Numbers, scales and zeros of each of the blocks (count, block); None if one has none."""
    most = (1 << bits) - 1
    ordered = np.sort(blocks.astype(np.float64), axis=1)
    low, high = ordered[:, 0], ordered[:, -1]
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return None
    size = np.maximum(np.abs(low), np.abs(high))
    sizes = np.abs(blocks.astype(np.float64))
    allowed = np.maximum(_EXACT * sizes, _TYPICAL * np.median(sizes, axis=1, keepdims=True))
    gaps = np.diff(ordered, axis=1)
    gaps[gaps <= size[:, None] / 1024] = math.inf
    gap = gaps.min(axis=1)
    flat = ~np.isfinite(gap)
    gap = np.where(flat, np.where(size > 0, size, 1), gap)
    numbers, scale, zero = (np.zeros(shape) for shape in (blocks.shape, len(blocks), len(blocks)))
    done = np.zeros(len(blocks), bool)
    for parts in (1, 2, 3, 4):  # neighbors in a small block may be several steps apart
        count = np.rint((high - low) / gap * parts)
        step = np.where(count > 0, (high - low) / np.maximum(count, 1), gap)
        index = np.rint((blocks - low[:, None]) / step[:, None])
        for origin in (np.rint(-low / step), -low / step):
            error = np.abs((index - origin[:, None]) * step[:, None] - blocks)
            fits = (count <= most) & (error <= allowed).all(axis=1) & ~done
            fits &= np.abs(origin) <= 2 * (most + 1)  # beyond, the kernel's sums would cancel out
            numbers[fits], scale[fits], zero[fits] = index[fits], step[fits], origin[fits]
            done |= fits
        if done.all():
            return numbers.astype(np.uint8), scale, zero
    return None
