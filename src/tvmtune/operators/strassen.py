"""Products with weights by Strassen's algorithm: seven products of half the extents instead of eight.

Rows, terms and columns are halved. Quarters of the weights are added at compile time; at run time there
are sums of quarters of the data, seven products, and sums of these. Halves of rows are every other row,
and halves of columns every other vector, so that a tile of the output has parts of all four quarters;
halves of terms are contiguous.

V. Strassen, "Gaussian Elimination is not Optimal", 1969. Winograd's variant needs fewer additions, but
adds up to four quarters, which rounds more (N. Higham, "Exploiting Fast Matrix Multiplication Within
the Level 3 BLAS", 1990). A second level of the recursion would save as much again, and read three times
the weights of the product instead of 7/4.

Errors are relative to the larger of two neighboring rows, and what is not finite in one of them reaches
both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmtune.arrays import empty
from tvmtune.operators import cpu_gemm, tiled_loops
from tvmtune.operators.combinations import Factors, combine
from tvmtune.passes import constants
from tvmtune.passes.blocks import LEFT_ALONE
from tvmtune.passes.fusable_calls import call_fusable
from tvmtune.types import product

RULE = "tvmtune.strassen"
OPERAND_RULE = "tvmtune.strassen_operand"
LANES = 16
"""Half the terms must be a multiple of it: the data are added by vectors of so many."""
_BLOCK = "tvmtune.block"
"""Annotation of the products: the rows and vectors of a block."""

DATA: Factors = (
    (1, 0, 0, 1),
    (0, 0, 1, 1),
    (1, 0, 0, 0),
    (0, 0, 0, 1),
    (1, 1, 0, 0),
    (-1, 0, 1, 0),
    (0, 1, 0, -1),
)
"""Factors of the data's quarters, row by row, in each product."""
WEIGHTS: Factors = (
    (1, 0, 0, 1),
    (1, 0, 0, 0),
    (0, 1, 0, -1),
    (-1, 0, 1, 0),
    (0, 0, 0, 1),
    (1, 1, 0, 0),
    (0, 0, 1, 1),
)
"""Factors of the weights' quarters, row by row, in each product."""
OUTPUT: Factors = (
    (1, 0, 0, 1, -1, 0, 1),
    (0, 0, 1, 0, 1, 0, 0),
    (0, 1, 0, 1, 0, 0, 0),
    (1, -1, 1, 0, 0, 1, 0),
)
"""Factors of the products in each quarter of the output, row by row."""
PRODUCTS = len(DATA)


@dataclass(frozen=True)
class Blocks:
    """The blocks of a product of halves, each of which one thread computes."""

    rows: int
    """Of a block."""
    count: int
    """Blocks of rows; they have at least half the output's rows together."""
    vectors: int
    """Of columns, of a block."""
    lanes: int
    """Columns of a vector."""


Blocking = Callable[[int, int], Blocks | None]
"""Blocks for a product with so many rows and columns; None for one without halves that suit."""


def applies(blocking: Blocking, call: Any) -> bool:
    """Static float32 data whose rows are along one axis, times a constant matrix whose halves suit.

    With rows along several axes, TVM would simplify the indices of all quarters for minutes.
    """
    if not cpu_gemm.multiplies_by_weights(call):
        return False
    rows, _, _ = extents(call)
    is_one_axis = rows in [int(n) for n in call.ty.shape][:-1]
    return is_one_axis and _blocks(blocking, call) is not None


def extents(call: Any) -> tuple[int, int, int]:
    """Rows, terms and columns of a product with a matrix."""
    *outer, columns = (int(n) for n in call.ty.shape)
    return product(outer), int(call.args[1].ty.shape[0]), columns


def _blocks(blocking: Blocking, call: Any) -> Blocks | None:
    rows, terms, columns = extents(call)
    return blocking(rows, columns) if terms and terms % (2 * LANES) == 0 else None


def replace(blocking: Blocking, builder: Any, call: Any, values: bool = True) -> Any:
    """The same product for a ``relax.matmul`` that :func:`applies` accepted. Without ``values`` the
    transformed weights, which are larger, stay uninitialized."""
    blocks = _blocks(blocking, call)
    assert blocks is not None
    _, terms, columns = extents(call)
    if values:
        transformed = transform_weight(constants.values(call.args[1]), blocks.lanes)
    else:
        transformed = empty((PRODUCTS, terms // 2, columns // 2), "float32")
    output = [int(n) for n in call.ty.shape]

    def program(data: Any, weight: Any) -> Any:
        return matmul(blocks, data, weight, output)

    return call_fusable(
        builder, program, call.args[0], constants.share(transformed), name="matmul_strassen"
    )


def transform_weight(weight: np.ndarray, lanes: int) -> np.ndarray:
    """(terms, columns) to (7, terms / 2, columns / 2); the columns' halves are every other vector of so
    many lanes."""
    terms, columns = weight.shape
    split = weight.reshape(2, terms // 2, columns // (2 * lanes), 2, lanes)
    quarters = [split[i, :, :, j] for i in range(2) for j in range(2)]
    result = empty((PRODUCTS, terms // 2, columns // 2), "float32")
    for sums, factors in zip(result, WEIGHTS, strict=True):
        added = [f * quarter for f, quarter in zip(factors, quarters, strict=True) if f]
        sums.reshape(quarters[0].shape)[...] = sum(added)
    return result


def matmul(blocks: Blocks, data: Any, weight: Any, output: Sequence[int]) -> Any:
    """In TE, the product of (..., terms) data and (7, terms / 2, columns / 2) weights in the shape of
    the output."""
    from tvm import te, tirx
    from tvm.topi.utils import ravel_index

    *outer, columns = output
    count, lanes, terms = product(outer), blocks.lanes, int(weight.shape[1])
    rows = blocks.rows * blocks.count
    k = te.reduce_axis((0, terms), "k")

    def quarter(index: int, pair: Any, term: Any) -> Any:
        row = 2 * pair + index // 2
        if 2 * rows > count:  # rows that are added repeat the last one and are not stored
            row = tirx.min(row, count - 1)
        return data[(*cpu_gemm.position(row, outer), term + index % 2 * terms)]

    def added(p: Any, pair: Any, term: Any) -> Any:
        return combine(DATA, p, lambda index: quarter(index, pair, term))

    def total(p: Any, vector: Any, pair: Any, lane: Any) -> Any:
        return te.sum(operand[p, pair, k] * weight[p, k, vector * lanes + lane], axis=k)

    def stored(*at: Any) -> Any:
        place, column = ravel_index(at[:-1], outer), at[-1]
        index = place % 2 * 2 + column // lanes % 2
        within = column // (2 * lanes), place // 2, column % lanes
        return combine(OUTPUT, index, lambda p: products[(p, *within)])

    operand = te.compute(
        (PRODUCTS, rows, terms),
        added,
        name="strassen_operand",
        attrs={"schedule_rule": OPERAND_RULE},
    )
    # Vectors come before rows, as in cpu_gemm.
    products = te.compute(
        (PRODUCTS, columns // (2 * lanes), rows, lanes),
        total,
        name="strassen_product",
        attrs={"schedule_rule": RULE, _BLOCK: [blocks.rows, blocks.vectors]},
    )
    return te.compute(output, stored, name="matmul_strassen", attrs=LEFT_ALONE)


def schedule_operand(sch: Any, block: Any) -> list[Any]:
    """A vector of the sums of all quarters at a time, each value loaded once."""
    p, pair, terms = sch.get_loops(block)
    outer, lanes = sch.split(terms, [None, LANES])
    sch.reorder(pair, outer, p, lanes)
    sch.unroll(p)
    sch.vectorize(lanes)
    sch.parallel(sch.fuse(pair, outer))
    return [sch]


def schedule(sch: Any, block: Any) -> list[Any]:
    """Blocks in parallel; for each, the seven products one after another with tiles to be searched, and
    then the output."""
    from tvm.tirx import IndexMap
    from tvm.topi.utils import ravel_index

    rows, vectors = (int(n) for n in sch.get(block).annotations[_BLOCK])
    width = tiled_loops.lanes(sch.get(block))
    last = tiled_loops.inline_epilogue(sch, block)
    *outer, _ = (int(v.dom.extent) for v in sch.get(last).iter_vars)

    def flat(*at: Any) -> tuple[Any, ...]:
        return ravel_index(at[:-1], outer), at[-1]

    sch.transform_block_layout(last, IndexMap.from_func(flat, ndim=len(outer) + 1))
    place, column = sch.get_loops(last)
    row_block, pair, below = sch.split(place, [None, rows, 2])
    column_block, vector, beside, lanes = sch.split(column, [None, vectors, 2, width])
    # With the halves of rows inside those of columns, no vector spans two quarters.
    sch.reorder(column_block, row_block, vector, pair, beside, below, lanes)
    around = sch.fuse(column_block, row_block)
    for loop in (beside, below):
        sch.unroll(loop)
    sch.vectorize(lanes)
    sch.compute_at(block, around, preserve_unit_loops=True)
    _, _, vector, pair, lanes, terms = sch.get_loops(block)
    tiled_loops.tile(sch, block, (pair, vector), (terms,), lanes)
    sch.parallel(around)
    return [sch]
