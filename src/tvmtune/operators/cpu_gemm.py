"""Convolutions and products with weights as products of two matrices, for CPUs with few registers or
with AVX-512.

A CPU with few registers needs tiles of four to six pixels by two vectors of channels: with fewer sums,
each waits for the one before it, and more do not fit. A tile of a direct convolution holds pixels of
one image row, whose number is often a multiple of seven, or a prime. Here a matrix row is a pixel of
the whole image, and rows are added until they fill tiles. Added rows repeat the last one and are not
stored. The same holds for products whose rows are those of windows of 7x7 tokens. With the many
registers of AVX-512, most numbers have tiles; these are for primes, and for columns that do not fill
their last vector.

This is the implicit GEMM of Chetlur et al., "cuDNN: Efficient Primitives for Deep Learning", 2014,
section 3.1, as is :mod:`tvmtune.operators.gemm` for GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvmtune.operators import convolution_calls, padded, tiled_loops
from tvmtune.passes.bindings import is_float32
from tvmtune.passes.blocks import LEFT_ALONE
from tvmtune.passes.fusable_calls import call_fusable
from tvmtune.passes.packed_products import FEWEST
from tvmtune.static_shapes import has_static_shapes
from tvmtune.types import product

RULE = "tvmtune.cpu_gemm"
BY_VECTORS = "tvmtune.cpu_gemm_by_vectors"
"""Rule of products whose columns are two axes: vectors, and the lanes of each."""


@dataclass(frozen=True)
class Matrix:
    """The extents that are computed of an output: at least those of the product."""

    rows: int
    columns: int
    """Of each group."""
    lanes: int = 1
    """With several, columns are computed as vectors of so many."""


@dataclass(frozen=True)
class Extents:
    """Those of a convolution or product with weights."""

    line: int
    """Rows along the last axis of the output that has several: pixels of one line of an image."""
    rows: int
    terms: int
    columns: int
    """Of each group."""
    groups: int

    @classmethod
    def of(cls, call: Any) -> Extents:
        *image, columns = (int(extent) for extent in call.ty.shape)
        line = next((extent for extent in reversed(image) if extent > 1), 1)
        groups = int(getattr(call.attrs, "groups", 1))
        *kernel, _ = (int(extent) for extent in call.args[1].ty.shape)
        return cls(line, product(image), product(kernel), columns // groups, groups)


Padding = Callable[[int, int, int], Matrix | None]
"""The extents to compute instead of rows and the columns of each group, or None if no tile suits them.
The third argument is the number of groups."""


def applies_to_convolution(padding: Padding, call: Any) -> bool:
    """One to three dimensions, channels last, float32, constant weights, at least :data:`FEWEST` pixels
    and input channels of a group, and output channels that ``padding`` accepts."""
    if not convolution_calls.is_plain(call, grouped=True):
        return False
    return _has_matrix(padding, call)


def multiplies_by_weights(call: Any) -> bool:
    """Whether a ``relax.matmul`` is one of static float32 data with a constant matrix."""
    import tvm

    return (
        has_static_shapes(call)
        and isinstance(call.args[1], tvm.ir.GenericConst)
        and len(call.args[1].ty.shape) == 2
        and is_float32(call)
    )


def applies_to_matmul(padding: Padding, call: Any) -> bool:
    """As for convolutions, with a constant matrix as the second operand."""
    return multiplies_by_weights(call) and _has_matrix(padding, call)


def _has_matrix(padding: Padding, call: Any) -> bool:
    rows, inputs = Extents.of(call).rows, int(call.args[1].ty.shape[-2])
    return min(rows, inputs) >= FEWEST and _matrix(padding, call) is not None


def _matrix(padding: Padding, call: Any) -> Matrix | None:
    extents = Extents.of(call)
    return padding(extents.rows, extents.columns, extents.groups)


def replace_convolution(padding: Padding, builder: Any, call: Any, values: bool = True) -> Any:
    """The same convolution for a ``relax.nn.conv1d``, ``conv2d`` or ``conv3d`` that
    :func:`applies_to_convolution` accepted."""
    output = [int(n) for n in call.ty.shape]
    groups = int(call.attrs.groups)
    group = output[-1] // groups
    matrix = _matrix(padding, call)
    assert matrix is not None
    reads = convolution_calls.Reads.of(call)
    name = f"conv{reads.dims}d_gemm"

    def program(data: Any, weight: Any) -> Any:
        from tvm import te

        # A check in each product would take as long as the product.
        data = reads.padded(data, LEFT_ALONE)
        *window, depth, _ = (int(n) for n in weight.shape)
        taps = reads.taps(window)
        k = te.reduce_axis((0, depth), "k")

        def term(pixel: Any, channel: Any) -> Any:
            image, *at = position(pixel, output[:-1])
            first = channel // group * depth if groups > 1 else 0
            return data[(image, *reads.at(at, taps), first + k)] * weight[(*taps, k, channel)]

        return _sums(matrix, output, term, [*taps, k], name)

    return _call(builder, program, call, matrix, values, name)


def replace_matmul(padding: Padding, builder: Any, call: Any, values: bool = True) -> Any:
    """The same product for a ``relax.matmul`` that :func:`applies_to_matmul` accepted."""
    output = [int(n) for n in call.ty.shape]
    matrix = _matrix(padding, call)
    assert matrix is not None

    def program(data: Any, weight: Any) -> Any:
        from tvm import te

        k = te.reduce_axis((0, int(weight.shape[0])), "k")

        def term(row: Any, column: Any) -> Any:
            return data[(*position(row, output[:-1]), k)] * weight[k, column]

        return _sums(matrix, output, term, [k], "matmul_gemm")

    return _call(builder, program, call, matrix, values, "matmul_gemm")


def _call(builder: Any, program: Any, call: Any, matrix: Matrix, values: bool, name: str) -> Any:
    """``program`` of the call's operands, the second with zeros for columns that are added. Without
    ``values`` weights that change stay uninitialized."""
    data, weight = call.args
    if matrix.lanes > 1:
        weight = padded.padded_constant(weight, matrix.columns, values)
    return call_fusable(builder, program, data, weight, name=name)


def _sums(
    matrix: Matrix,
    output: Sequence[int],
    term: Callable[[Any, Any], Any],
    axes: Sequence[Any],
    name: str,
) -> Any:
    """Sums of ``term(row, column)`` over ``axes``, in the shape of the output."""
    from tvm import te, tirx
    from tvm.topi.utils import ravel_index

    *outer, columns = output
    count, lanes = product(outer), matrix.lanes

    def total(row: Any, column: Any) -> Any:
        if matrix.rows > count:
            row = tirx.min(row, count - 1)
        return te.sum(term(row, column), axis=axes)

    if lanes == 1:
        shape: tuple[int, ...] = (matrix.rows, columns)
    else:
        shape = (matrix.columns // lanes, matrix.rows, lanes)

    def element(*at: Any) -> Any:
        return total(*at) if lanes == 1 else total(at[1], at[0] * lanes + at[2])

    rule = RULE if lanes == 1 else BY_VECTORS
    sums = te.compute(shape, element, name="product", attrs={"schedule_rule": rule})

    def stored(*at: Any) -> Any:
        row, column = ravel_index(at[:-1], outer), at[-1]
        return sums[row, column] if lanes == 1 else sums[column // lanes, row, column % lanes]

    return te.compute(output, stored, name=name)


def position(pixel: Any, shape: Sequence[int]) -> list[Any]:
    """The image, row and column of a pixel; 0, not a quotient, along axes of one step."""
    from tvm.topi.utils import unravel_index

    found = iter(unravel_index(pixel, [extent for extent in shape if extent > 1]))
    return [next(found) if extent > 1 else 0 for extent in shape]


def schedule(sch: Any, block: Any) -> list[Any]:
    """Tiles of rows and columns to be searched, each with its epilogue; for blocks named by
    :data:`RULE`, and by :data:`BY_VECTORS`, where a tile has whole vectors.

    As one loop, LLVM would compute three vectors as four. TVM makes one of loops whose sums are next to
    each other, which is why vectors come first in the product's shape.
    """
    from tvm.tirx import IndexMap
    from tvm.topi.utils import ravel_index

    rule = str(sch.get(block).annotations["schedule_rule"])
    lanes = tiled_loops.lanes(sch.get(block)) if rule == BY_VECTORS else 1
    last = tiled_loops.inline_epilogue(sch, block)
    *outer, columns = (int(v.dom.extent) for v in sch.get(last).iter_vars)
    is_whole = lanes > 1 and columns % lanes == 0

    def flat(*at: Any) -> tuple[Any, ...]:
        row, column = ravel_index(at[:-1], outer), at[-1]
        return (row, column // lanes, column % lanes) if is_whole else (row, column)

    loops = sch.get_loops(block)
    if lanes == 1:
        tiled, innermost, terms = loops[:2], [], loops[2:]
    else:
        tiled, innermost, terms = [loops[1], loops[0]], [loops[2]], loops[3:]
    sch.transform_block_layout(last, IndexMap.from_func(flat, ndim=len(outer) + 1))
    around, _ = tiled_loops.tile(sch, block, tiled, terms, *innermost)
    sch.reverse_compute_at(last, around, preserve_unit_loops=True)
    if lanes > 1 and not is_whole:
        sch.split(sch.get_loops(last)[-1], [None, lanes])
    return [sch]
