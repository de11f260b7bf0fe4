"""Convolutions and products with weights as products of two matrices, for CPUs with few registers.

Such a CPU needs tiles of four to six pixels by two vectors of channels: with fewer sums, each waits for
the one before it, and more do not fit. A tile of a direct convolution holds pixels of one image row,
whose number is often a multiple of seven, or a prime. Here a matrix row is a pixel of the whole image,
and rows are added until they fill tiles. Added rows repeat the last one and are not stored. The same
holds for products whose rows are those of windows of 7x7 tokens.

This is the implicit GEMM of Chetlur et al., "cuDNN: Efficient Primitives for Deep Learning", 2014,
section 3.1, as is :mod:`tvmtune.operators.gemm` for GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tvmtune.operators import conv2d_calls, padded, tiled_loops
from tvmtune.operators.winograd import LEFT_ALONE
from tvmtune.passes.call_sites import blocks
from tvmtune.passes.fusable_calls import call_fusable
from tvmtune.passes.packed_products import FEWEST, Window
from tvmtune.passes.static_shapes import has_static_shapes
from tvmtune.types import product

RULE = "tvmtune.cpu_gemm"
_SPATIAL = 0
"""TVM's number for axes of blocks that are not summed."""
BY_VECTORS = "tvmtune.cpu_gemm_by_vectors"
"""Rule of products whose columns are two axes: vectors, and the lanes of each."""


class Matrix(Protocol):
    """The extents of an output: at least those of the product, with several lanes whole vectors."""

    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def lanes(self) -> int: ...


Padding = Callable[[int, int, int], Matrix | None]
"""The extents to compute instead of rows and the columns of each group, or None if no tile suits them.
The third argument is the number of groups."""


def applies_to_conv2d(padding: Padding, call: Any) -> bool:
    """NHWC, float32, constant weights, at least :data:`FEWEST` pixels and input channels of a group,
    and output channels that ``padding`` accepts."""
    if not conv2d_calls.is_plain(call, grouped=True):
        return False
    *image, columns = (int(extent) for extent in call.ty.shape)
    pixels, inputs = product(image), int(call.args[1].ty.shape[2])
    groups = int(call.attrs.groups)
    return min(pixels, inputs) >= FEWEST and padding(pixels, columns // groups, groups) is not None


def applies_to_matmul(padding: Padding, call: Any) -> bool:
    """As for convolutions, with a constant matrix as the second operand."""
    import tvm

    if not has_static_shapes(call) or not isinstance(call.args[1], tvm.ir.GenericConst):
        return False
    if any(str(each.ty.dtype) != "float32" for each in (*call.args, call)):
        return False
    *image, inputs = (int(extent) for extent in call.args[0].ty.shape)
    matrix = call.args[1].ty.shape
    if len(matrix) != 2 or min(product(image), inputs) < FEWEST:
        return False
    return padding(product(image), int(matrix[1]), 1) is not None


def replace_conv2d(padding: Padding, builder: Any, call: Any, values: bool = True) -> Any:
    """The same convolution for a ``relax.nn.conv2d`` that :func:`applies_to_conv2d` accepted."""
    output = [int(n) for n in call.ty.shape]
    groups = int(call.attrs.groups)
    group = output[-1] // groups
    matrix = _required(padding, output, groups)
    window = Window.of(call.attrs)
    strides, dilation = window.strides, window.dilation
    top, left, bottom, right = window.padding

    def program(data: Any, weight: Any) -> Any:
        from tvm import te, topi

        if any(window.padding):  # a check in each product would take as long as the product
            around = (0, top, left, 0), (0, bottom, right, 0)
            data = topi.nn.pad(data, *around, name="padding", attrs=LEFT_ALONE)
        height, width, depth, _ = (int(n) for n in weight.shape)
        axes = [
            te.reduce_axis((0, extent), name)
            for extent, name in ((height, "ky"), (width, "kx"), (depth, "k"))
        ]

        def term(pixel: Any, channel: Any) -> Any:
            image, y, x = _position(pixel, output[:-1])
            ky, kx, k = axes
            y = y * strides[0] + ky * dilation[0]
            x = x * strides[1] + kx * dilation[1]
            first = channel // group * depth if groups > 1 else 0
            return data[image, y, x, first + k] * weight[ky, kx, k, channel]

        return _sums(matrix, output, term, axes, "conv2d_gemm")

    return _call(builder, program, call, matrix, values, "conv2d_gemm")


def replace_matmul(padding: Padding, builder: Any, call: Any, values: bool = True) -> Any:
    """The same product for a ``relax.matmul`` that :func:`applies_to_matmul` accepted."""
    output = [int(n) for n in call.ty.shape]
    matrix = _required(padding, output, 1)

    def program(data: Any, weight: Any) -> Any:
        from tvm import te

        k = te.reduce_axis((0, int(weight.shape[0])), "k")

        def term(row: Any, column: Any) -> Any:
            return data[(*_position(row, output[:-1]), k)] * weight[k, column]

        return _sums(matrix, output, term, [k], "matmul_gemm")

    return _call(builder, program, call, matrix, values, "matmul_gemm")


def _required(padding: Padding, output: Sequence[int], groups: int) -> Matrix:
    """The extents to compute of a call that was accepted."""
    matrix = padding(product(output[:-1]), output[-1] // groups, groups)
    assert matrix is not None
    return matrix


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
        sums = te.compute(
            (matrix.rows, columns), total, name="product", attrs={"schedule_rule": RULE}
        )
        return te.compute(output, lambda *at: sums[ravel_index(at[:-1], outer), at[-1]], name=name)
    sums = te.compute(
        (matrix.columns // lanes, matrix.rows, lanes),
        lambda vector, row, lane: total(row, vector * lanes + lane),
        name="product",
        attrs={"schedule_rule": BY_VECTORS},
    )
    return te.compute(
        output,
        lambda *at: sums[at[-1] // lanes, ravel_index(at[:-1], outer), at[-1] % lanes],
        name=name,
    )


def _position(pixel: Any, shape: Sequence[int]) -> list[Any]:
    """The image, row and column of a pixel; 0, not a quotient, along axes of one step."""
    from tvm.topi.utils import unravel_index

    found = iter(unravel_index(pixel, [extent for extent in shape if extent > 1]))
    return [next(found) if extent > 1 else 0 for extent in shape]


def schedule(sch: Any, block: Any) -> list[Any]:
    """Tiles of rows and columns to be searched, each with its epilogue; for the block named by
    :data:`RULE`."""
    from tvm.tirx import IndexMap
    from tvm.topi.utils import ravel_index

    last = tiled_loops.inline_epilogue(sch, block)
    row, column, *terms = sch.get_loops(block)
    *outer, _ = (int(v.dom.extent) for v in sch.get(last).iter_vars)
    flat = IndexMap.from_func(
        lambda *at: (ravel_index(at[:-1], outer), at[-1]), ndim=len(outer) + 1
    )
    sch.transform_block_layout(last, flat)
    around = tiled_loops.tile(sch, block, [row, column], terms)
    sch.reverse_compute_at(last, around, preserve_unit_loops=True)
    return [sch]


def schedule_by_vectors(sch: Any, block: Any) -> list[Any]:
    """The same for :data:`BY_VECTORS`: a tile has whole vectors. LLVM would compute three of them as
    four if they were one loop, which TVM makes of loops whose sums are next to each other."""
    from tvm.tirx import IndexMap
    from tvm.topi.utils import ravel_index

    last = tiled_loops.inline_epilogue(sch, block)
    vector, row, lane, *terms = sch.get_loops(block)
    lanes = int(sch.get(lane).extent)
    *outer, _ = (int(v.dom.extent) for v in sch.get(last).iter_vars)
    flat = IndexMap.from_func(
        lambda *at: (ravel_index(at[:-1], outer), at[-1] // lanes, at[-1] % lanes),
        ndim=len(outer) + 1,
    )
    sch.transform_block_layout(last, flat)
    around = tiled_loops.tile(sch, block, [row, vector], terms, lane)
    sch.reverse_compute_at(last, around, preserve_unit_loops=True)
    return [sch]


def lanes_of(mod: Any) -> int:
    """How many lanes the vectors have that a kernel's tiles consist of; 1 if they are made of single
    columns."""
    for function in mod.functions.values():
        for block in blocks(function):
            if str(block.annotations.get("schedule_rule", "")) == BY_VECTORS:
                spatial = [v for v in block.iter_vars if int(v.iter_type) == _SPATIAL]
                return int(spatial[-1].dom.extent)
    return 1
