"""Tiles of sums of products on CPUs, chosen from the shape and the vector unit alone.

The rules tile such kernels in the order SSRSRS: outer tiles, which are shared among threads, tiles
within them, outer parts of the sums, tiles within those, inner parts of the sums, the register tile.
The last spatial loop, which is contiguous, gives the register tile's columns, and the last loop before
it that has several steps its rows. All other decisions are about caches.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvmtune.cpu_features import AVX, AVX512, VectorUnit
from tvmtune.operators import strassen
from tvmtune.operators.cpu_gemm import Extents, Matrix
from tvmtune.passes import packed_products
from tvmtune.types import product

if TYPE_CHECKING:
    import tvm

CACHED = 512 * 1024
"""Bytes of an operand that stay in a core's own cache while the other operands pass."""
TERMS = 128
"""Terms of a sum that are added for a block of rows at a time, at most."""
CONVOLUTION_TERMS = 64
"""The same for convolutions on CPUs with few registers, unless a line of the kernel has more terms:
with AVX2, a whole line is then added at a time, which reads its channels in one piece. In parts of 64
terms, twenty convolutions with 3x3, 5x5, 3 and 3x3x3 kernels took 1.1 times as long on a Zen 3
(geometric mean; 0.95 to 1.7)."""
WEIGHTS = 16 * 1024
"""Bytes of the weights of these terms for a register tile's columns. They stay in the first-level
cache, of which a hardware thread may have half, unless they are those of a line of a kernel; see
:data:`CONVOLUTION_TERMS`."""
FEW_ROWS, FEW_TERMS = 64, 32
"""So few rows that their data of so few terms stay there, too."""
WAITING_TERMS = 16
"""Terms that are added at a time, on CPUs with few registers, in tiles of so few sums that each
addition waits for the one before it. A core then computes several tiles at a time, as the next ones are
among the instructions that it looks ahead. Measured with AVX2 on a Zen 3."""
ABREAST = 4
"""Tiles of columns that are computed for each tile of rows of a first operand above :data:`STREAMED`,
or of a product in small tiles, at most. Their weights stay in the second-level cache."""
COLUMNS_ABREAST = 192
"""Columns of these tiles, at most: their sums for a block of rows stay there, too."""
STREAMED = 1280 * 1024
"""Bytes of an operand above which each pass over it loads it from outside the core's own caches."""
BLOCK_ROWS = 320
"""Rows of such a block. Its sums stay in the second-level cache."""
DEPTHWISE_SUMS = 14
"""Sums of a depthwise convolution's tile: more save little and make its code longer."""
TENSOR_SUMS = 20
"""Vectors of sums in a tile of dot-product instructions with several columns: with more, LLVM spills
some although there are registers left."""
QUADS = 4
"""Instructions per sum between two branches."""
GEMM_VECTORS = 2
"""Vectors of channels in a tile of an image's pixels, of one line or of several."""
VECTORS_PER_TILE = (2, 3, 5)
"""The same for other numbers of channels."""
PRODUCT_VECTORS = (2, 3, 4, 5)
"""Those in a tile of a product with AVX-512, where four vectors leave room for enough rows."""
SLOWDOWN = 0.035
"""Part of its time that a tile loses for each sum that it has less than registers hold, except for
products with AVX-512. Measured with AVX2 on a Zen 3: 12 sums reach 167 GFLOPS, 10 164 (for which this
says 156), 9 150 and 8 146."""
GAIN = 0.95
"""Such tiles must save a twentieth of the loads: they also compute addresses."""
GROUPED_GAIN = 0.8
"""The same for convolutions with groups, whose sums are short, so that addresses weigh more. On a Zen
3, 3x3 kernels with 16 channels per group took 0.4 of the time where 0.55 of the loads were left, on
14x14 pixels, and 1.15 to 2 times as long with 0.86 of them, on 28x28 and 56x56."""
LOAD_SHARE = 0.1
MANY_SUMS, MANY_SUMS_SHARE = 16, 0.003
"""Parts of its time that a tile of a product takes longer with AVX-512, for each load per
multiplication and for each sum above :data:`MANY_SUMS`: a core computes the epilogue of one tile while
it starts on the next. Measured on a Zen 5: for 4096 rows, 180 terms and 360 columns, tiles of 8x2, 8x3,
9x3 and 14x2 vectors take 1.06, 1.07, 1.07 and 1.08 ms. Within siglip_vision, with 196 rows, those of
7x2, 4x4, 7x3 and 14x2 take 23.9, 24.0, 24.6 and 24.9 ms."""
WHOLE_GAIN = 0.98
"""Tiles of whole vectors are chosen for a product if their time is at most this part of the other
tiles'."""
FEW_CHANNELS = 4
"""Input channels of a convolution of an image, at most."""
SMALL_SUMS, SMALL_SUM, SMALL_VECTOR = 7, 0.003, 0.03
"""Sums of a tile from which on each more costs this part of the time, where instructions take two
cycles, and each vector of columns after the first that part; see ``benchmarks/cpu.md`` for the times
on a Zen 4."""
CACHE_WAY, CACHE_WAYS = 4096, 8
"""The first-level cache: bytes after which addresses share the same places, and how many of these."""
CONFLICT = 0.8
"""Part of its time that a tile of one vector loses if its rows do not fit in these places, fitted to
the same table."""
SMALL_HEIGHTS = range(5, 9)
"""Rows of a small tile of one vector that has enough sums, and not too many."""
SMALL_GAIN = 0.9
"""Such tiles of a whole image must take this part of the time, at most: the image may be copied."""
WEIGHTS_PER_CYCLE = 1.35
"""Cycles for a vector of weights from the second-level cache."""
STRASSEN_HELD = 512 * 1024
"""Bytes of the products of a block by Strassen's algorithm, at most: they stay in the second-level
cache."""
STRASSEN_TILES = 8
"""How many of the best tiles are considered for it."""
STRASSEN_ROWS, STRASSEN_EXTENT, STRASSEN_WEIGHTS = (64, 512), 384, 2**19
"""Products for which it is expected to be faster: rows, terms and columns at least, and weights."""
WINOGRAD_WEIGHTS = 20 * 1024
"""Bytes of transformed weights that stay in the first-level cache, at most."""
FEWEST_PARTS = 8
"""Tiles of rows for several threads, at least."""
TENSOR_COLUMNS = 4
"""Columns of such a tile, at most."""
SHORT_SUM, SHORT_SUM_IN_HALVES = 16, 128
"""Instructions per sum up to which small tiles of bytes are better: a core computes the epilogue of one
while it starts on the next. The second is that of CPUs whose instructions take two cycles, such as a
Zen 4, which eight sums keep busy. On a Zen 5, kernels of more instructions take 5 to 16% longer with
tiles of 4x2 vectors than with 4x4 or 7x2, and any of bfloat16 24 to 43%."""
LOADS = 0.9
"""Loads per instruction up to which they take no time of their own."""
_QUAD = 4
"""Bytes of weights that such an instruction multiplies in each lane."""
_VECTOR_LOAD = 1.5
"""What loading a vector costs in a good register tile, in loads of a single value: a line each, of
which some come from the second-level cache."""
_NARROW_LOAD = 4
"""The same in the comparison with padded columns, whose other tiles are narrow and wait more."""
_SMALL_LATENCY = 4
"""Cycles that the result of a multiply-add takes."""
_LATENCY = 8
"""Sums that must be open for a core to start a multiply-add in each cycle: two at a time, for four
cycles."""


@dataclass(frozen=True)
class Decisions:
    """Parts of each loop, outermost first."""

    spatial: list[list[int]]
    """Four parts each."""
    reduction: list[list[int]]
    """Two parts each."""


def decisions(
    spatial: Sequence[int],
    reduction: Sequence[int],
    unit: VectorUnit,
    cores: int = 1,
    group: int | None = None,
    lanes: int = 1,
    *,
    in_blocks: bool = False,
) -> list[Decisions]:
    """Tilings of a kernel with these loops, the one that should be fastest first.

    ``spatial`` and ``reduction`` are extents. The last spatial loop is contiguous in the output, and
    the last loop of the sum in the first operand, unless ``group`` is 1. ``group`` is the result of
    :func:`column_group`: columns of one tile must lie in the same group. With more than one of
    ``lanes``, the last spatial loop counts vectors of so many columns. ``in_blocks``: whether the loops
    are those of a block that one thread computes, and whose sums stay in its caches.
    """
    if not spatial:
        return [Decisions([], _terms(reduction, TERMS))]
    # Blocked layouts may have loops of one step between rows and columns.
    row = max((i for i, extent in enumerate(spatial[:-1]) if extent > 1), default=None)
    height = 1 if row is None else spatial[row]
    small = unit.in_halves and group is None and not in_blocks and _shares_little(reduction)
    if small:
        tiles = small_tiles(height, spatial[-1], reduction[-1], unit, lanes)
    elif lanes > 1:
        tiles = vector_tiles(
            height, spatial[-1], unit, of_product=len(reduction) == 1 and group is None
        )
    else:
        tiles = register_tiles(height, spatial[-1], unit, group)
    extents = [*spatial[:-1], spatial[-1] * lanes]
    result = []
    for rows, width in tiles:
        columns = width * lanes
        register = [1] * len(spatial)
        register[-1] = width
        if row is not None:
            register[row] = rows
        rest = [size // part for size, part in zip(spatial, register, strict=True)]
        if in_blocks:
            # A tile's columns and some terms of their weights stay in the first-level cache.
            parts = [[1, 1, outer, part] for outer, part in zip(rest, register, strict=True)]
            parts[-1] = [rest[-1], 1, 1, width]
        elif _weights_once(extents, reduction, rest):
            block = _row_block(rest[:-1], rows, 2 * cores // rest[-1])
            parts = [
                [1, outer // inner, inner, part]
                for outer, inner, part in zip(rest[:-1], block, register[:-1], strict=True)
            ]
            streams = small or _data(extents, reduction) > STREAMED
            abreast = (
                _abreast(spatial[-1] // width, columns, cores, equally=small) if streams else 1
            )
            parts.append([rest[-1] // abreast, 1, abreast, width])
        else:
            parts = [[outer, 1, 1, part] for outer, part in zip(rest, register, strict=True)]
        waits = (
            unit.has_few_registers and group != 1 and 2 * rows * unit.vectors(columns) <= _LATENCY
        )
        most = _most_terms(product(spatial[:-1]), columns, waits)
        if unit.has_few_registers and len(reduction) > 1 and group != 1:
            by_lines = not waits and unit.lanes >= AVX.lanes
            terms = _convolution_terms(reduction, min(most, CONVOLUTION_TERMS), by_lines)
        else:
            terms = _terms(reduction, most)
        result.append(Decisions(parts, terms))
    return result


def winograd_lanes(unit: VectorUnit) -> int:
    """Channels per vector, at least, in the transforms of Winograd's algorithms.

    On a Zen 4, where shorter vectors take half the time, F(4x4, 3x3) takes 0.33 of the direct
    algorithm's time for 24 channels and 56x56 pixels, 0.5 for 36, and 0.66 for 36 and 28x28 pixels.
    Shorter vectors than a CPU's own were not measured elsewhere.
    """
    return 4 if unit.in_halves else max(unit.lanes, AVX.lanes)


def winograd_decisions(
    spatial: Sequence[int], reduction: Sequence[int], unit: VectorUnit, lanes: int
) -> list[Decisions]:
    """Tilings of the products of :mod:`tvmtune.operators.winograd_fused`, the one that should be
    fastest first. ``spatial`` has positions in a tile, down and across, and tiles; ``reduction`` has
    input channels. Blocks have so many ``lanes`` of output channels."""
    down, across, tiles = spatial
    (channels,) = reduction
    # All products add some channels at a time, whose transformed weights stay in the first-level cache.
    terms = divisor(channels, WINOGRAD_WEIGHTS // (4 * lanes * down * across))
    heights = sorted(divisors(tiles, _room(unit.vectors(lanes), unit)), reverse=True)
    return [
        Decisions(
            [[1, 1, down, 1], [1, 1, across, 1], [1, 1, tiles // height, height]],
            [[channels // terms, terms]],
        )
        for height in heights
    ]


def tensor_decisions(
    spatial: Sequence[int],
    reduction: Sequence[int],
    columns: Sequence[bool],
    unit: VectorUnit,
    *,
    of_bytes: bool = True,
) -> list[Decisions]:
    """Tilings of a kernel whose innermost loops are one dot-product instruction, of bytes or of
    bfloat16, the one that should be fastest first.

    The loops are those around the instruction, which computes one vector of sums; ``columns`` says
    which spatial ones choose among the second operand's vectors. A tile of r rows and n columns loads r
    times what is multiplied with all lanes, and n vectors.
    """
    row, column = (
        max((i for i, c in enumerate(columns) if c is kind and spatial[i] > 1), default=None)
        for kind in (False, True)
    )
    vectors = [size for size, one in zip(spatial, columns, strict=True) if one]
    weights = _QUAD * unit.lanes * product([*reduction, *vectors])
    blocked = channels_in_blocks(columns)
    result = []
    heights, widths = (1 if axis is None else spatial[axis] for axis in (row, column))
    short = SHORT_SUM_IN_HALVES if unit.in_halves else SHORT_SUM
    is_short = of_bytes and not blocked and product(reduction) <= short
    for height, width in _tensor_tiles(heights, widths, unit, is_short):
        if not blocked and height > 1 and width.bit_count() > 1:
            continue  # LLVM takes the epilogue's vectors of 48 lanes apart
        register = [1] * len(spatial)
        for axis, inner in ((row, height), (column, width)):
            if axis is not None:
                register[axis] = inner
        rest = [size // inner for size, inner in zip(spatial, register, strict=True)]
        if blocked:
            # Columns come first if their weights would not stay in the cache for all rows.
            first = [one or weights <= CACHED for one in columns]
            # The last loop is left over where a block has several vectors: it must not become one.
            tile = [*([1, inner] for inner in register[:-1]), [register[-1], 1]]
            terms = _terms(reduction, QUADS)
        else:
            # What comes first is shared by the threads: columns also if there are few rows. All terms
            # are summed before the tile's epilogue.
            rows = product([n for n, one in zip(rest, columns, strict=True) if not one])
            by_columns = weights > CACHED or rows < FEWEST_PARTS
            first = [one is by_columns for one in columns]
            tile = [[inner, 1] for inner in register]
            terms = [[size, 1] for size in reduction]
        parts = [
            [*((outer, 1) if one else (1, outer)), *inner]
            for outer, one, inner in zip(rest, first, tile, strict=True)
        ]
        result.append(Decisions(parts, terms))
    return result


def _tensor_tiles(rows: int, columns: int, unit: VectorUnit, is_short: bool) -> list[list[int]]:
    """Heights and widths, best first."""
    tiles = []
    for height in divisors(rows, unit.registers - 4):
        for width in divisors(columns, TENSOR_COLUMNS):
            sums = height * width
            if sums <= min(TENSOR_SUMS, unit.sums) or width == 1:
                loads = (_VECTOR_LOAD * width + height) / sums
                cost = max(loads, LOADS) if is_short else loads
                tiles.append((cost * max(1.0, _LATENCY / sums), sums, height, width))
    return [tile for _, _, *tile in sorted(tiles)]


def divisors(extent: int, most: int) -> list[int]:
    return [d for d in range(1, min(extent, most) + 1) if extent % d == 0]


def _most_terms(rows: int, columns: int, waits: bool) -> int:
    """How many terms to add at a time for a register tile of so many columns. ``waits``: whether its
    additions wait for each other."""
    if rows == 1:
        return TERMS  # each weight is used once: nothing needs to stay
    if waits:
        return WAITING_TERMS
    return FEW_TERMS if rows <= FEW_ROWS else max(1, min(TERMS, WEIGHTS // (4 * columns)))


def _weights_once(spatial: Sequence[int], reduction: Sequence[int], rest: Sequence[int]) -> bool:
    """Whether to compute all rows for a tile of columns before the next columns, so that the second
    operand is read from memory once, rather than all columns for a tile of rows."""
    weights = 4 * product(reduction) * spatial[-1]
    data = _data(spatial, reduction)
    *row_tiles, column_tiles = rest
    columns_first = data + weights * (1 if weights <= CACHED else product(row_tiles))
    rows_first = weights + data * (1 if data <= CACHED else column_tiles)
    return rows_first < columns_first


def _shares_little(reduction: Sequence[int]) -> bool:
    """Whether neighboring rows of sums share little data: in a product of matrices, and in a
    convolution of an image."""
    if not reduction:
        return False
    return product(reduction[:-1]) == 1 or reduction[-1] <= FEW_CHANNELS


def _data(spatial: Sequence[int], reduction: Sequence[int]) -> int:
    """Bytes of the first operand: a convolution's data, of which neighboring sums share values, as if
    its kernel were 1x1."""
    return 4 * product(spatial[:-1]) * (reduction[-1] if reduction else 1)


def _abreast(tiles: int, columns: int, cores: int, *, equally: bool) -> int:
    """How many of so many tiles of columns to compute for each tile of rows, at least two groups of
    them for each core; ``equally``: if possible as many for each. ``columns`` are those of a tile."""
    most = min(ABREAST, COLUMNS_ABREAST // columns, tiles // (2 * cores))
    return max(
        divisors(tiles, max(1, most)), key=lambda n: (equally and tiles // n % cores == 0, n)
    )


def _row_block(tiles: Sequence[int], rows: int, blocks: int) -> list[int]:
    """How many of the tiles along each loop form a block that shares the weights of the inner
    terms. ``rows`` is a tile's height, and ``blocks`` how many blocks there should be at least."""
    most = max(1, min(BLOCK_ROWS // rows, product(tiles) // max(1, blocks)))
    block = []
    for size in reversed(tiles):
        inner = divisor(size, most)
        block.append(inner)
        most = most // inner if inner == size else 1
    return block[::-1]


def _terms(reduction: Sequence[int], most: int) -> list[list[int]]:
    """Parts of the loops over terms, the inner ones at most ``most`` in all: as much of a convolution's
    kernel as leaves room for some channels."""
    if not reduction:
        return []
    *kernel, channels = reduction
    terms = 1
    parts = []
    for size in reversed(kernel):
        if terms * size * min(channels, 8) <= most:
            terms *= size
            parts.append([1, size])
        else:
            parts.append([size, 1])
    inner = divisor(channels, most // terms)
    return [*reversed(parts), [channels // inner, inner]]


def _convolution_terms(reduction: Sequence[int], most: int, by_lines: bool) -> list[list[int]]:
    """As :func:`_terms`; with ``by_lines`` at least the terms of a line of the kernel, all its
    channels."""
    outer, line = reduction[:-2], reduction[-2:]
    if by_lines and product(reduction[:-1]) > 1 and product(line) > most:
        return [*([size, 1] for size in outer), *([1, size] for size in line)]
    return _terms(reduction, most)


def register_tiles(
    rows: int, columns: int, unit: VectorUnit, group: int | None = None
) -> list[tuple[int, int]]:
    """Rows and columns of tiles whose sums stay in registers, best first.

    ``columns`` become vector lanes, and ``rows`` share the vectors that were loaded for them. For each
    term of the sums, a tile of r rows and n vectors multiplies r * n times and loads r values and n
    vectors. LLVM keeps the sums in registers only if vectors have a power of two lanes: others are ten
    times slower. With a ``group`` of 1, as in depthwise convolutions, each multiplication loads a
    vector of its own, so that further vectors save nothing.
    """
    tiles = []
    depthwise = group == 1
    width = 8 * unit.lanes
    while width:
        vectors = unit.vectors(width)
        fits = columns % width == 0 and (depthwise or (group or columns) % width == 0)
        most = 1 if depthwise else 4
        if fits and (vectors <= most or rows * vectors <= _LATENCY):
            sums = _most_sums(vectors, unit)
            if depthwise:
                sums = min(sums, DEPTHWISE_SUMS)
            height = divisor(rows, max(1, sums // vectors))
            cost = _cost(height, vectors, width / unit.lanes, depthwise)
            tiles.append((cost, -width, height))
        width //= 2
    return [(height, -width) for _, width, height in sorted(tiles)]


def small_tiles(
    rows: int, columns: int, terms: int, unit: VectorUnit, lanes: int = 1
) -> list[tuple[int, int]]:
    """As :func:`register_tiles` or, with several ``lanes``, :func:`vector_tiles`, of products of so
    many terms, for CPUs that take two cycles for an instruction on a whole register.

    Four sums keep these busy. More would share each load among more products, but loads are not what
    takes the time, and rows of the first operand conflict in the first-level cache: with 1024 terms,
    all have eight places together.
    """
    tiles = []
    widths = divisors(columns, max(PRODUCT_VECTORS)) if lanes > 1 else (64, 32, 16, 8, 4, 2, 1)
    for width in widths:
        if columns % width:
            continue
        vectors = unit.vectors(width * lanes)
        for height in divisors(rows, _room(vectors, unit)):
            tiles.append((_small_cost(height, width * lanes, terms, unit), -height, width))
    return [(-height, width) for _, height, width in sorted(tiles)]


def _small_cost(height: int, width: int, terms: int, unit: VectorUnit) -> float:
    """The time of a tile of so many rows and columns for a term, in cycles per vector of sums."""
    vectors = unit.vectors(width)
    sums = height * vectors
    multiply = sums / 2 if 2 * width <= unit.lanes else sums
    cycles = max(multiply, _SMALL_LATENCY, (height + vectors) / 2)
    if 4 * width * min(terms, TERMS) > WEIGHTS:
        cycles = max(cycles, WEIGHTS_PER_CYCLE * vectors)
    cycles *= 1 + SMALL_VECTOR * (vectors - 1) + SMALL_SUM * max(0, sums - SMALL_SUMS)
    places = CACHE_WAYS * CACHE_WAY // math.gcd(4 * terms, CACHE_WAY)
    if height > places:
        cycles *= 1 + CONFLICT / vectors
    return cycles * unit.lanes / (height * width)


def _cost(height: int, vectors: int, width: float, depthwise: bool = False) -> float:
    """Of a tile of so many rows and vectors, of which ``width`` are used: loads per multiplication, or
    more if its additions wait for each other."""
    sums = height * vectors
    loads = _VECTOR_LOAD * vectors + (sums if depthwise else height)
    return loads / (height * width) * max(1.0, _LATENCY / sums)


def padded_matrix(rows: int, columns: int, groups: int, unit: VectorUnit) -> Matrix | None:
    """The extents, at least these, that take the least time by tiles of several vectors; None if there
    are no such tiles. ``columns`` are those of each of so many groups."""
    if columns % (GEMM_VECTORS * unit.lanes) == 0:
        return Matrix(_padded_rows(rows, unit), columns)
    return _in_vectors(rows, columns, groups, unit, VECTORS_PER_TILE, _slowdown)


def product_matrix(rows: int, columns: int, groups: int, unit: VectorUnit) -> Matrix | None:
    """As :func:`padded_matrix`, always by whole vectors."""
    return _in_vectors(rows, columns, groups, unit, PRODUCT_VECTORS, _product_slowdown)


def _in_vectors(
    rows: int,
    columns: int,
    groups: int,
    unit: VectorUnit,
    widths: Sequence[int],
    slowdown: Callable[[tuple[int, int], VectorUnit], float],
) -> Matrix | None:
    """The extents, at least these, that take the least time by tiles of so many vectors; None for
    groups and for fewer columns than two vectors."""
    vectors = unit.vectors(columns)
    if vectors < min(widths) or groups > 1:
        return None

    def extents(tile: tuple[int, int]) -> tuple[int, int]:
        height, width = tile
        return -(-rows // height) * height, -(-vectors // width) * width

    best = min(
        ((height, width) for width in widths for height in range(1, _room(width, unit) + 1)),
        key=lambda tile: product(extents(tile)) * slowdown(tile, unit),
    )
    height, width = extents(best)
    return Matrix(height, width * unit.lanes, unit.lanes)


def vector_tiles(
    rows: int, vectors: int, unit: VectorUnit, *, of_product: bool = False, padded: bool = False
) -> list[tuple[int, int]]:
    """Rows and vectors of tiles whose sums stay in registers, best first, of a convolution or of a
    product with weights. ``padded``: whether rows may be added until they fill tiles."""
    tiles = [
        (height, width)
        for width in divisors(vectors, max(*VECTORS_PER_TILE, *PRODUCT_VECTORS))
        for height in (
            range(1, min(rows, _room(width, unit)) + 1)
            if padded
            else divisors(rows, _room(width, unit))
        )
    ]
    slowdown = _product_slowdown if of_product else _slowdown
    return sorted(tiles, key=lambda tile: (slowdown(tile, unit), sum(tile) / product(tile)))


def _slowdown(tile: tuple[int, int], unit: VectorUnit) -> float:
    """The time per sum of a tile of so many rows and vectors, relative to one that fills the
    registers."""
    return 1 + SLOWDOWN * (unit.sums - product(tile))


def _product_slowdown(tile: tuple[int, int], unit: VectorUnit) -> float:
    """The same for products; with AVX-512, relative to a tile that only multiplies."""
    if unit.lanes != AVX512.lanes:
        return _slowdown(tile, unit)
    sums = product(tile)
    many = MANY_SUMS_SHARE * max(0, sums - MANY_SUMS)
    return (1 + LOAD_SHARE * sum(tile) / sums + many) * max(1.0, _LATENCY / sums)


def _room(vectors: int, unit: VectorUnit) -> int:
    """Rows of a tile of so many vectors, at most."""
    return _most_sums(vectors, unit) // vectors


def _most_sums(vectors: int, unit: VectorUnit) -> int:
    """Sums of a tile of so many vectors, at most. A register must be left for the values that multiply
    them."""
    return min(unit.sums, unit.registers - 1 - vectors)


def _padded_rows(rows: int, unit: VectorUnit) -> int:
    """The number of rows, at least ``rows``, for which tiles of :data:`GEMM_VECTORS` vectors take the
    least time; small ones, where these are better."""
    if unit.in_halves:
        return min(-(-rows // n) * n for n in SMALL_HEIGHTS)
    heights = range(1, _room(GEMM_VECTORS, unit) + 1)
    sizes = {n: -(-rows // n) * n for n in heights}
    best = min(sizes, key=lambda n: sizes[n] * _cost(n, GEMM_VECTORS, GEMM_VECTORS))
    return sizes[best]


def saves_loads(extents: Extents, unit: VectorUnit) -> bool:
    """Whether tiles of :func:`padded_matrix` should be faster than those of one line's pixels."""
    rows, columns, groups = extents.rows, extents.columns, extents.groups

    def cost(extent: int) -> float:
        height, width = register_tiles(extent, columns, unit)[0]
        return _cost(height, unit.vectors(width), width / unit.lanes)

    padded = padded_matrix(rows, columns, groups, unit)
    if padded is None or padded.lanes > 1:
        # Tiles of one line have one vector of columns. Not measured with short vectors.
        return padded is not None and unit.lanes >= AVX.lanes
    gain = GROUPED_GAIN if groups > 1 else GAIN
    return cost(padded.rows) * padded.rows < gain * cost(extents.line) * rows


def waits(extents: Extents, unit: VectorUnit) -> bool:
    """Whether tiles of one line's pixels wait, and those of :func:`padded_matrix` do less: with few
    sums each addition for the one before, and small tiles for the caches. On a Zen 5, 1x1 convolutions
    of 73x73 pixels with 80 channels take 0.4 of the time, of 35x35 with 48 0.8; on a Zen 4 those of
    17x17 pixels with 1024 channels 0.55 to 0.85."""
    line, rows, columns = extents.line, extents.rows, extents.columns
    padded = padded_matrix(rows, columns, extents.groups, unit)
    if extents.groups > 1 or padded is None:
        return False
    height, width = register_tiles(line, padded_columns(line, columns, unit), unit)[0]
    if height * unit.vectors(width) < _LATENCY:
        return True
    if not unit.in_halves or padded.lanes > 1:
        return False
    time = rows * _small_time(line, columns, extents.terms, unit)
    return padded.rows * _small_time(padded.rows, columns, extents.terms, unit) < SMALL_GAIN * time


def _small_time(rows: int, columns: int, terms: int, unit: VectorUnit) -> float:
    """Of the best of :func:`small_tiles`, as :func:`_small_cost`."""
    height, width = small_tiles(rows, columns, terms, unit)[0]
    return _small_cost(height, width, terms, unit)


def suits_vectors(extents: Extents, unit: VectorUnit) -> bool:
    """Whether a product should be faster by the tiles of :func:`product_matrix`. On a Zen 5, products
    with 360 columns take half the time, with 24 to 200 columns 0.6 to 0.9 of it, of 197 and 577 rows
    0.8 to 0.98, and of 196 rows within a network 0.9."""
    line, rows, columns = extents.line, extents.rows, extents.columns
    matrix = product_matrix(rows, columns, extents.groups, unit)
    if matrix is None:
        return False
    if packed_products.padded_rows(rows) > rows:
        return True  # the rows would be copied
    if columns % unit.lanes and not unit.in_halves:
        return True  # columns would be computed in halves of vectors, or stored one by one
    height, width = register_tiles(line, columns, unit)[0]
    by_lines = rows * columns / unit.lanes * _product_slowdown((height, unit.vectors(width)), unit)
    vectors = matrix.columns // unit.lanes
    tile = vector_tiles(matrix.rows, vectors, unit, of_product=True)[0]
    whole = matrix.rows * vectors * _product_slowdown(tile, unit)
    return whole < WHOLE_GAIN * by_lines


@functools.cache
def strassen_blocks(
    rows: int, columns: int, unit: VectorUnit, cores: int
) -> strassen.Blocks | None:
    """The blocks of a product's halves that should take the least time: with little padding, in good
    tiles, equally many for each core, and large. None if the columns' halves are no whole vectors, and
    for few rows or columns."""
    vectors, odd = divmod(columns, 2 * unit.lanes)
    half = -(-rows // 2)
    if odd or vectors < min(PRODUCT_VECTORS) or half < packed_products.FEWEST:
        return None
    best: tuple[float, int] | None = None
    blocks = None
    for width in divisors(vectors, vectors):
        row_bytes = 4 * strassen.PRODUCTS * width * unit.lanes
        tiles = vector_tiles(half, width, unit, of_product=True, padded=True)[:STRASSEN_TILES]
        for height, across in tiles:
            most = STRASSEN_HELD // (row_bytes * height) * height
            if not most:
                continue
            fewest = -(-half // most)
            for count in range(fewest, fewest + cores):
                block = -(-half // (count * height)) * height
                turns = -(-count * (vectors // width) // cores)
                time = turns * block * width * _product_slowdown((height, across), unit)
                if best is None or (time, -block * width) < best:
                    best = time, -block * width
                    blocks = strassen.Blocks(block, count, width, unit.lanes)
    return blocks


def suits_strassen(rows: int, terms: int, columns: int, unit: VectorUnit) -> bool:
    """Whether a product with weights should be faster by Strassen's algorithm. Measured on a Zen 4,
    where vectors of 512 bits take two passes, with weights from memory: from 64 to 512 rows, with 384
    to 3072 terms and columns, it takes 0.88 to 0.97 of the time, and larger weights are expected to
    gain as much; 1.02 with 512 by 512 weights, 1.03 with 50 rows, and 1.05 with 784 rows, whose blocks
    each read all weights."""
    few, many = STRASSEN_ROWS
    is_large = min(terms, columns) >= STRASSEN_EXTENT and terms * columns >= STRASSEN_WEIGHTS
    return unit.in_halves and few <= rows <= many and is_large


def padded_columns(rows: int, columns: int, unit: VectorUnit) -> int:
    """The number of columns, at least ``columns``, that takes the least time with its best register
    tile; ``columns`` itself if no other takes a seventh less."""
    best, least = columns, 0.85 * _time(rows, columns, unit)
    for vectors in (1, 2, 4):
        width = vectors * unit.lanes
        padded = -(-columns // width) * width
        if (time := _time(rows, padded, unit)) < least:
            best, least = padded, time
    return best


def group_vectors(rows: int, columns: int, unit: VectorUnit) -> int | None:
    """How many vectors to compute for the columns of a group in tiles of whole vectors; None if those
    of :func:`register_tiles` are as good. ``rows`` are those along a line of the image."""
    padded = padded_columns(rows, columns, unit)
    vectors = unit.vectors(padded)
    if padded > columns:
        return vectors
    # Of three vectors, register tiles have one. Measured with AVX-512, where five are no quicker.
    is_better = unit.lanes == AVX512.lanes and columns == 3 * unit.lanes
    return vectors if is_better else None


def _time(rows: int, columns: int, unit: VectorUnit) -> float:
    """Time per row of columns and term, in units of what one vector's multiply-add takes where it is
    not loads that take longer."""
    height, width = register_tiles(rows, columns, unit)[0]
    vectors = unit.vectors(width)
    sums = height * vectors
    return max(sums, height + _NARROW_LOAD * vectors, _LATENCY) / height * (columns / width)


def column_group(mod: tvm.IRModule) -> int | None:
    """How many neighboring columns of a grouped convolution read the same values of the first operand:
    1 for a depthwise convolution, None for kernels without groups."""
    from tvm import tirx
    from tvm.s_tir import Schedule

    def divisors(index: Any, variable: Any) -> Iterator[int]:
        if isinstance(index, tirx.FloorDiv) and index.a.same_as(variable):
            yield int(index.b)
        for operand in (getattr(index, "a", None), getattr(index, "b", None)):
            if operand is not None:
                yield from divisors(operand, variable)

    groups: set[int] = set()
    sch = Schedule(mod)
    for child in sch.get_child_blocks(sch.get_sblock("root")):
        block = sch.get(child)
        spatial = [v.var for v in block.iter_vars if v.iter_type == tirx.IterVar.DataPar]
        if not spatial or len(spatial) == len(block.iter_vars):
            continue
        column = spatial[-1]
        found = {n for r in block.reads for axis in r.region for n in divisors(axis.min, column)}
        if not found and all(uses(read.region[-1].min, column) for read in block.reads):
            found = {1}
        groups |= found
    return min(groups, default=None)


def window(mod: tvm.IRModule) -> int:
    """Positions of a convolution's kernel if it sums over channels last; 1 for other programs."""
    from tvm import tirx
    from tvm.s_tir import Schedule

    sch = Schedule(mod)
    for child in sch.get_child_blocks(sch.get_sblock("root")):
        block = sch.get(child)
        terms = [v for v in block.iter_vars if v.iter_type == tirx.IterVar.CommReduce]
        if len(terms) < 2 or len(block.reads) < 2:
            continue
        # The data's positions are sums of a position in the output and one in the kernel; the channels
        # of a group, sums that depend on the output's channel, as the weights do.
        data, weights = (read.region for read in block.reads[:2])
        outputs = [v.var for v in block.iter_vars if v.iter_type == tirx.IterVar.DataPar]
        channels = [v for v in outputs if any(uses(axis.min, v) for axis in weights)]
        positions = [
            axis.min
            for axis in data
            if isinstance(axis.min, tirx.Add) and not any(uses(axis.min, v) for v in channels)
        ]
        in_kernel = [any(uses(each, v.var) for each in positions) for v in terms]
        if not in_kernel[-1]:
            extents = [int(v.dom.extent) for v in terms]
            return product([n for n, inside in zip(extents, in_kernel, strict=True) if inside])
    return 1


def tensor_columns(block: Any) -> list[bool]:
    """For each spatial variable of a block that computes products with an instruction, whether it
    chooses among the second operand's vectors."""
    from tvm import tirx

    second = block.reads[-1].region
    return [
        any(uses(axis.min, each.var) for axis in second)
        for each in block.iter_vars
        if each.iter_type == tirx.IterVar.DataPar
    ]


def reads_blocks(block: Any, lanes: int, terms: int) -> bool:
    """Whether the last two axes of a block's last operand are outputs, a multiple of ``lanes``, and
    ``terms`` of each sum."""
    from tvm import tirx

    region = block.reads[-1].region if block.reads else ()
    if len(region) < 2:
        return False
    outputs, neighbors = (int(extent) for extent in block.reads[-1].source.shape[-2:])
    if outputs % lanes or neighbors != terms:
        return False
    kinds = (tirx.IterVar.DataPar, tirx.IterVar.CommReduce)
    return all(
        any(v.iter_type == kind and uses(axis.min, v.var) for v in block.iter_vars)
        for axis, kind in zip(region[-2:], kinds, strict=True)
    )


def channels_in_blocks(columns: Sequence[bool]) -> bool:
    """Whether rows follow the columns, so that a vector of channels is an axis of its own."""
    return any(columns[:-1])


def uses(index: Any, variable: Any) -> bool:
    """Whether an index depends on a variable."""
    operands = (getattr(index, "a", None), getattr(index, "b", None))
    return index.same_as(variable) or any(o is not None and uses(o, variable) for o in operands)


def divisor(extent: int, most: int) -> int:
    """The largest divisor of ``extent`` that is at most ``most``."""
    return max(d for d in range(1, max(1, min(extent, most)) + 1) if extent % d == 0)
