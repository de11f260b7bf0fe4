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
from typing import Any

from tvmtune.operators import conv2d_calls, tiled_loops
from tvmtune.operators.winograd import LEFT_ALONE
from tvmtune.passes.fusable_calls import call_fusable
from tvmtune.passes.packed_products import FEWEST, Window
from tvmtune.passes.static_shapes import has_static_shapes
from tvmtune.types import product

PaddedRows = Callable[[int, int], int]
"""How many rows to compute instead of (rows, columns): at least as many. 0 if no tile suits them."""
RULE = "tvmtune.cpu_gemm"


def applies_to_conv2d(rows: PaddedRows, call: Any) -> bool:
    """NHWC, float32, constant weights, at least :data:`FEWEST` pixels and input channels, and output
    channels that ``rows`` has a tile for; channels are those of a group."""
    if not conv2d_calls.is_plain(call, grouped=True):
        return False
    *image, columns = (int(extent) for extent in call.ty.shape)
    pixels, inputs = product(image), int(call.args[1].ty.shape[2])
    return min(pixels, inputs) >= FEWEST and rows(pixels, columns // int(call.attrs.groups)) > 0


def applies_to_matmul(rows: PaddedRows, call: Any) -> bool:
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
    return rows(product(image), int(matrix[1])) > 0


def replace_conv2d(rows: PaddedRows, builder: Any, call: Any, values: bool = True) -> Any:
    """The same convolution for a ``relax.nn.conv2d`` that :func:`applies_to_conv2d` accepted."""
    output = [int(n) for n in call.ty.shape]
    group = output[-1] // int(call.attrs.groups)
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
            first = channel // group * depth if group < output[-1] else 0
            return data[image, y, x, first + k] * weight[ky, kx, k, channel]

        padded = rows(product(output[:-1]), group)
        return _sums(padded, output, term, axes, "conv2d_gemm")

    return call_fusable(builder, program, *call.args, name="conv2d_gemm")


def replace_matmul(rows: PaddedRows, builder: Any, call: Any, values: bool = True) -> Any:
    """The same product for a ``relax.matmul`` that :func:`applies_to_matmul` accepted."""
    output = [int(n) for n in call.ty.shape]

    def program(data: Any, weight: Any) -> Any:
        from tvm import te

        k = te.reduce_axis((0, int(weight.shape[0])), "k")

        def term(row: Any, column: Any) -> Any:
            return data[(*_position(row, output[:-1]), k)] * weight[k, column]

        padded = rows(product(output[:-1]), output[-1])
        return _sums(padded, output, term, [k], "matmul_gemm")

    return call_fusable(builder, program, *call.args, name="matmul_gemm")


def _sums(
    padded: int,
    output: Sequence[int],
    term: Callable[[Any, Any], Any],
    axes: Sequence[Any],
    name: str,
) -> Any:
    """Sums of ``term(row, column)`` over ``axes``, in the shape of the output, whose rows are so many
    when ``padded``."""
    from tvm import te, tirx
    from tvm.topi.utils import ravel_index

    *outer, columns = output
    count = product(outer)

    def total(row: Any, column: Any) -> Any:
        if padded > count:
            row = tirx.min(row, count - 1)
        return te.sum(term(row, column), axis=axes)

    sums = te.compute((padded, columns), total, name="product", attrs={"schedule_rule": RULE})
    return te.compute(output, lambda *at: sums[ravel_index(at[:-1], outer), at[-1]], name=name)


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
