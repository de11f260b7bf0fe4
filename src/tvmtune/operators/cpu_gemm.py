"""Convolutions as matrix products, for CPUs with few registers.

Such a CPU needs tiles of four to six pixels by two vectors of channels: with fewer sums, each waits for
the one before it, and more do not fit. A tile of a direct convolution holds pixels of one image row,
whose number is often a multiple of seven, or a prime. Here a matrix row is a pixel of the whole image,
and rows are added until they fill tiles. Added rows repeat the last one and are not stored.

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
from tvmtune.types import product

PaddedRows = Callable[[int, int], int]
"""How many rows to compute instead of (rows, columns): at least as many. 0 if no tile suits them."""
RULE = "tvmtune.cpu_gemm"


def applies(rows: PaddedRows, call: Any) -> bool:
    """One group, NHWC, float32, constant weights, at least :data:`FEWEST` pixels and input channels,
    and output channels that ``rows`` has a tile for."""
    if not conv2d_calls.is_plain(call):
        return False
    *image, columns = (int(extent) for extent in call.ty.shape)
    pixels, inputs = product(image), int(call.args[1].ty.shape[2])
    return min(pixels, inputs) >= FEWEST and rows(pixels, columns) > 0


def replace(rows: PaddedRows, builder: Any, call: Any, values: bool = True) -> Any:
    """The same convolution for a ``relax.nn.conv2d`` that :func:`applies` accepted."""
    output = [int(n) for n in call.ty.shape]
    window = Window.of(call.attrs)
    strides, dilation = window.strides, window.dilation
    top, left, bottom, right = window.padding
    *outer, channels = output
    pixels = product(outer)
    padded = rows(pixels, channels)

    def program(data: Any, weight: Any) -> Any:
        from tvm import te, tirx, topi
        from tvm.topi.utils import ravel_index

        if any(window.padding):  # a check in each product would take as long as the product
            around = (0, top, left, 0), (0, bottom, right, 0)
            data = topi.nn.pad(data, *around, name="padding", attrs=LEFT_ALONE)
        height, width, depth, _ = (int(n) for n in weight.shape)
        axes = [
            te.reduce_axis((0, extent), name)
            for extent, name in ((height, "ky"), (width, "kx"), (depth, "k"))
        ]
        ky, kx, k = axes

        def term(pixel: Any, channel: Any) -> Any:
            if padded > pixels:
                pixel = tirx.min(pixel, pixels - 1)
            image, y, x = _position(pixel, outer)
            y = y * strides[0] + ky * dilation[0]
            x = x * strides[1] + kx * dilation[1]
            return te.sum(data[image, y, x, k] * weight[ky, kx, k, channel], axis=axes)

        sums = te.compute((padded, channels), term, name="product", attrs={"schedule_rule": RULE})
        return te.compute(
            output, lambda *at: sums[ravel_index(at[:-1], outer), at[-1]], name="conv2d_gemm"
        )

    return call_fusable(builder, program, *call.args, name="conv2d_gemm")


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
