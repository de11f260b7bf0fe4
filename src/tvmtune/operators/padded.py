"""Matrix products and convolutions whose extents have no good tiles, computed with padded ones.

TVM's rules split loops into equal parts. 197 rows, a prime, leave tiles of 1 or 197 rows; 58 columns
leave vectors of 2 or 29. Here rows and columns are rounded up until good tiles exist, and the last
block leaves the rest out. Constant operands are padded at compile time, others by a block of their own.
A convolution's output channels are padded likewise. With AVX, :mod:`tvmtune.operators.cpu_gemm` takes
most products with weights instead, whose rows need no copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tvmtune.arrays import empty, numpy_dtype
from tvmtune.operators import convolution_calls
from tvmtune.passes import constants
from tvmtune.passes.blocks import LEFT_ALONE
from tvmtune.passes.fusable_calls import call_fusable
from tvmtune.passes.packed_products import FEWEST, Window, padded_rows
from tvmtune.passes.precision import HALF_DTYPES
from tvmtune.static_shapes import static_shape
from tvmtune.types import product

PaddedColumns = Callable[[int, int], int]
"""How many columns to compute instead of (rows, columns): at least as many."""
COLUMNS = 8
"""Columns must be a multiple of it: half a vector of AVX-512, one of AVX2, two of NEON."""


def padded_columns(columns: int) -> int:
    """``columns`` or, if that is no multiple of :data:`COLUMNS`, the next multiple of two times it."""
    if columns < FEWEST or columns % COLUMNS == 0:
        return columns
    return -(-columns // (2 * COLUMNS)) * 2 * COLUMNS


def applies_to_matmul(call: Any) -> bool:
    """Static float32 operands, or half-precision ones that are summed in float32 and not constant; the
    second a matrix or of the same batch; and extents without tiles."""
    import tvm

    left, right = (static_shape(argument) for argument in call.args)
    if left is None or right is None or min(len(left), len(right)) < 2:
        return False
    dtypes = {str(argument.ty.dtype) for argument in call.args}
    is_half = len(dtypes) == 1 and dtypes <= set(HALF_DTYPES)
    if str(call.ty.dtype) != "float32" or not (is_half or dtypes == {"float32"}):
        return False
    if is_half and any(isinstance(argument, tvm.ir.GenericConst) for argument in call.args):
        return False  # weights would be converted in each call, which doubles what is loaded
    if len(right) > 2 and left[:-2] != right[:-2]:
        return False
    rows = product(left[:-1]) if len(right) == 2 else left[-2]
    if rows < FEWEST and not isinstance(call.args[1], tvm.ir.GenericConst):
        return False  # padding the second operand would take longer than the product
    return padded_rows(rows) > rows or padded_columns(right[-1]) > right[-1]


def replace_matmul(builder: Any, call: Any, values: bool = True) -> Any:
    """The padded product for a ``relax.matmul`` that :func:`applies_to_matmul` accepted. Without
    ``values`` constants stay uninitialized."""
    import tvm

    left, right = call.args
    columns = int(right.ty.shape[-1])
    if isinstance(right, tvm.ir.GenericConst):
        right = padded_constant(right, padded_columns(columns), values)
    output = [int(n) for n in call.ty.shape]

    def program(a: Any, b: Any) -> Any:
        return matmul(a, b, output)

    return call_fusable(builder, program, left, right, name="matmul_padded")


def matmul(a: Any, b: Any, output: list[int]) -> Any:
    """(..., m, k) times (k, n), or times (..., k, n) with the same batch. The last axis of ``b`` may be
    padded already. Operands in half precision are converted before the product, not for each term."""
    from tvm import te
    from tvm.topi.utils import ravel_index, unravel_index

    shared = len(b.shape) == 2
    batch = [] if shared else output[:-2]
    rows = product(output[:-1]) if shared else output[-2]
    length, columns = int(a.shape[-1]), int(b.shape[-1])
    inner = output[:-1] if shared else output[-2:-1]
    most_rows, most_columns = padded_rows(rows), padded_columns(columns)

    def row(*index: Any) -> Any:
        *outer, i, k = index
        return a(*outer, *unravel_index(i, inner), k)

    left = a
    if most_rows > rows or len(a.shape) != len(batch) + 2 or _is_half(a):
        left = _padded([*batch, most_rows, length], len(batch), rows, row, _is_half(a), "left")
    right = b
    if most_columns > columns or _is_half(b):
        right = _padded(
            [*batch, length, most_columns], len(batch) + 1, columns, b, _is_half(b), "right"
        )
    k = te.reduce_axis((0, length), "k")

    def term(*index: Any) -> Any:
        *outer, i, j = index
        return te.sum(left(*outer, i, k) * right(*outer, k, j), axis=k)

    sums = te.compute([*batch, most_rows, most_columns], term, name="product")

    def element(*index: Any) -> Any:
        outer, j = index[: len(batch)], index[-1]
        return sums(*outer, ravel_index(index[len(batch) : -1], inner), j)

    return te.compute(output, element, name="matmul_padded")


def _is_half(tensor: Any) -> bool:
    return str(tensor.dtype) in HALF_DTYPES


def _padded(shape: list[int], axis: int, extent: int, read: Any, is_half: bool, name: str) -> Any:
    """What ``read`` reads, in half precision or not, in float32, with zeros from ``extent`` on along
    ``axis``."""
    from tvm import te, tirx

    def value(*index: Any) -> Any:
        found = read(*index)
        if is_half:
            found = found.astype("float32")
        if shape[axis] == extent:
            return found
        return tirx.if_then_else(index[axis] < extent, found, tirx.const(0.0, "float32"))

    # Inlined by the rules, padding would put a branch into each term of a sum, and half precision a
    # conversion.
    is_inlined = shape[axis] == extent and not is_half
    return te.compute(shape, value, name=name, attrs={} if is_inlined else LEFT_ALONE)


def padded_constant(constant: Any, columns: int, values: bool, groups: int = 1) -> Any:
    """The constant with so many columns, the last axis, in each of so many groups, of which further
    ones are 0. Without ``values`` a new constant stays uninitialized."""
    *outer, last = (int(n) for n in constant.ty.shape)
    group = last // groups
    if group == columns:
        return constant
    shape = [*outer, groups * columns]
    if not values:
        return constants.share(empty(shape, numpy_dtype(str(constant.ty.dtype))))
    split = constants.values(constant).reshape(*outer, groups, group)
    padding = [*[(0, 0)] * (len(outer) + 1), (0, columns - group)]
    return constants.share(np.pad(split, padding).reshape(shape))


def applies_to_conv2d(columns: PaddedColumns, call: Any) -> bool:
    """One group, NHWC, float32, constant weights, and output channels that ``columns`` would pad."""
    if not convolution_calls.is_plain(call):
        return False
    output = [int(n) for n in call.ty.shape]
    return product(output[:-1]) >= FEWEST and columns(output[-2], output[-1]) > output[-1]


def replace_conv2d(columns: PaddedColumns, builder: Any, call: Any, values: bool = True) -> Any:
    """The padded convolution for a ``relax.nn.conv2d`` that :func:`applies_to_conv2d` accepted. Without
    ``values`` constants stay uninitialized."""
    data, weight = call.args
    output = [int(n) for n in call.ty.shape]
    weight = padded_constant(weight, columns(output[-2], output[-1]), values)
    window = Window.of(call.attrs)

    def program(x: Any, w: Any) -> Any:
        from tvm import te, topi

        sums = topi.nn.conv2d_nhwc(
            *(x, w, window.strides, window.padding, window.dilation), out_dtype="float32"
        )
        return te.compute(output, lambda *index: sums(*index), name="conv2d_padded")

    return call_fusable(builder, program, data, weight, name="conv2d_padded")
