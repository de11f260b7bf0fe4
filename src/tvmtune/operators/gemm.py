"""Convolutions as matrix products, for GPUs: implicit GEMM, and split-K for long sums.

Chetlur et al., "cuDNN: Efficient Primitives for Deep Learning", 2014, section 3.1: the im2col
matrix is never stored; each tile of it is gathered where the product needs it. A matrix row is an
output pixel, so that a tile may hold pixels of several image rows, which a tile of the direct
convolution cannot. The number of pixels is rounded up to a multiple of 16, so that power-of-two
tiles exist for the 7x7 pixels of a network's last layers, too.

Such layers have few outputs, each a long sum, and leave most of a large GPU idle. Split-K lets several
thread blocks compute parts of each sum, which a second kernel adds.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

from tvmtune.arrays import empty, numpy_dtype
from tvmtune.passes import constants
from tvmtune.passes.fusable_calls import call_fusable
from tvmtune.passes.packed_products import Window
from tvmtune.passes.precision import HALF_DTYPES
from tvmtune.static_shapes import has_static_shapes
from tvmtune.types import product

ROWS = 16
"""The number of pixels is rounded up to a multiple of this."""
GATHER = "tvmtune.gather"
"""Annotation of the product of a convolution in channels-last layout: what :func:`replace` was told to
``annotate``, see :class:`Gather`."""
OUTPUTS = 1 << 19
"""Outputs, counted once per part of their sums, that keep a large GPU busy: 128 thread blocks with
64x64 each."""
PARTS = 16
"""Most parts of a sum: the kernel that adds them reads each."""
SHORTEST = 128
"""Fewest products in a part of a sum."""


def applies(call: Any) -> bool:
    """One group, constant weights, NHWC or NCHW, floating point, static shapes."""
    import tvm

    if not has_static_shapes(call):
        return False
    attrs = call.attrs
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    return (
        attrs.groups == 1
        and layouts in (("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"))
        and isinstance(call.args[1], tvm.ir.GenericConst)
        and str(call.args[0].ty.dtype) in ("float32", *HALF_DTYPES)
    )


def splits(call: Any) -> bool:
    """Whether there are so few outputs that splitting their sums pays."""
    return applies(call) and _parts(call) > 1


def replace(
    builder: Any, call: Any, values: bool = True, *, rows: int = ROWS, annotate: bool = False
) -> Any:
    """Implicit GEMM for a ``relax.nn.conv2d`` that :func:`applies` accepted. Without ``values`` the
    weights stay uninitialized. The number of pixels is rounded up to a multiple of ``rows``. With
    ``annotate`` the product carries :data:`GATHER`."""
    return _replaced(builder, call, 1, "conv2d_implicit_gemm", values, rows, annotate)


def replace_split(
    builder: Any, call: Any, values: bool = True, *, rows: int = ROWS, annotate: bool = False
) -> Any:
    """As :func:`replace`, with split sums, for a call that :func:`splits` accepted."""
    return _replaced(builder, call, _parts(call), "conv2d_split_k", values, rows, annotate)


def applies_to_matmul(call: Any) -> bool:
    """Constant weights, a matrix; half precision, summed in float32; static shapes."""
    import tvm

    dtypes = {str(argument.ty.dtype) for argument in call.args}
    return (
        has_static_shapes(call)
        and isinstance(call.args[1], tvm.ir.GenericConst)
        and len(call.args[0].ty.shape) > 1
        and len(call.args[1].ty.shape) == 2
        and len(dtypes) == 1
        and dtypes <= set(HALF_DTYPES)
        and str(call.ty.dtype) == "float32"
    )


def splits_matmul(call: Any) -> bool:
    """As :func:`splits`, for a matrix product."""
    return applies_to_matmul(call) and _parts(call) > 1


def replace_matmul(
    builder: Any, call: Any, values: bool = True, *, rows: int, split: bool = False
) -> Any:
    """The program of :func:`replace` for a ``relax.matmul`` that :func:`applies_to_matmul` accepted,
    with :data:`GATHER`: its rows are the pixels of an image that is one pixel wide. With ``split`` as
    :func:`replace_split`."""
    output = [int(n) for n in call.ty.shape]
    *outer, length = (int(n) for n in call.args[0].ty.shape)
    count, channels = product(outer), output[-1]
    parts = _parts(call) if split else 1

    def program(data: Any, weight: Any) -> Any:
        from tvm import te, tirx

        def value(row: Any, k: Any) -> Any:
            at: list[Any] = []
            for extent in reversed(outer[1:]):
                at.insert(0, row % extent)
                row //= extent
            return data(row, *at, k)

        def inside(row: Any, k: Any) -> Any:
            zero = tirx.const(0, str(data.dtype))
            return tirx.if_then_else(row < count, value(row, k), zero)

        padded = _padded(count, rows)
        element = inside if padded > count else value
        patches = te.compute((padded, length), element, name="patches")
        image = Gather(
            images=1,
            height=count,
            width=1,
            depth=length,
            filter_columns=1,
            out_height=count,
            out_width=1,
            stride_y=1,
            stride_x=1,
            dilation_y=1,
            dilation_x=1,
            top=0,
            left=0,
            channels=channels,
        )
        sums = _sums(patches, weight, "float32", parts, {GATHER: [*astuple(image)]})

        def total(*at: Any) -> Any:
            row = at[0]
            for index, extent in zip(at[1:-1], outer[1:], strict=True):
                row = row * extent + index
            return _total(sums, parts, row, at[-1])

        return te.compute(output, total, name="matmul")

    weights = call.args[1]
    if not values:
        shape = (length, channels)
        weights = constants.share(empty(shape, numpy_dtype(str(weights.ty.dtype))))
    name = "matmul_split_k" if split else "matmul_mma"
    return call_fusable(builder, program, call.args[0], weights, name=name)


def _parts(call: Any) -> int:
    """Number of parts of each sum: enough to keep a large GPU busy, if the sums are long enough;
    1 for no split."""
    *_, length, channels = _sizes(call)
    pixels = _padded(product(call.ty.shape) // channels, ROWS)
    most = min(OUTPUTS // (pixels * channels), length // SHORTEST, PARTS)
    return max((n for n in range(2, most + 1) if length % n == 0), default=1)


def _padded(pixels: int, rows: int) -> int:
    return -(-pixels // rows) * rows


@dataclass(frozen=True)
class Gather:
    """Where the terms of a convolution's sums lie in NHWC data, as in :data:`GATHER`."""

    images: int
    height: int
    width: int
    depth: int
    filter_columns: int
    out_height: int
    out_width: int
    stride_y: int
    stride_x: int
    dilation_y: int
    dilation_x: int
    top: int
    left: int
    channels: int
    """Of the output."""


def _sizes(call: Any) -> tuple[int, ...]:
    """Filter rows and columns, products per sum, output channels."""
    shape = [int(extent) for extent in call.args[1].ty.shape]
    if len(shape) == 2:
        return 1, 1, *shape
    if str(call.attrs.kernel_layout) == "OIHW":
        channels, depth, rows, columns = shape
    else:
        rows, columns, depth, channels = shape
    return rows, columns, rows * columns * depth, channels


def _replaced(
    builder: Any,
    call: Any,
    parts: int,
    name: str,
    values: bool,
    multiple: int,
    annotate: bool,
) -> Any:
    rows, columns, length, channels = _sizes(call)
    attrs = call.attrs
    last = str(attrs.data_layout) == "NHWC"
    shape = (length, channels) if last else (channels, length)
    if values:
        matrix = constants.values(call.args[1]).reshape(shape)
    else:
        matrix = empty(shape, numpy_dtype(str(call.args[1].ty.dtype)))

    output = [int(n) for n in call.ty.shape]

    window = Window.of(attrs)
    strides, dilation, padding = window.strides, window.dilation, window.padding

    def program(data: Any, weight: Any) -> Any:
        patches = gather(
            data,
            filters=(rows, columns),
            strides=strides,
            dilation=dilation,
            padding=padding,
            output=output,
            last=last,
            multiple=multiple,
        )
        notes = None
        if annotate:
            images, height, width, depth = (int(n) for n in data.shape)
            found = Gather(
                images=images,
                height=height,
                width=width,
                depth=depth,
                filter_columns=columns,
                out_height=output[1],
                out_width=output[2],
                stride_y=strides[0],
                stride_x=strides[1],
                dilation_y=dilation[0],
                dilation_x=dilation[1],
                top=padding[0],
                left=padding[1],
                channels=channels,
            )
            notes = {GATHER: [*astuple(found)]}
        return multiply(patches, weight, output, str(call.ty.dtype), parts, name, last, notes)

    return call_fusable(builder, program, call.args[0], constants.share(matrix), name=name)


def gather(
    data: Any,
    *,
    filters: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    output: Sequence[int],
    last: bool,
    multiple: int = ROWS,
) -> Any:
    """The im2col matrix: (pixels, products) from NHWC data if channels come ``last``, else (products,
    pixels) from NCHW. The number of pixels is padded to a ``multiple``."""
    from tvm import te, tirx

    rows, columns = filters
    top, left = padding[:2]
    if last:
        _, height, width, depth = (int(n) for n in data.shape)
        batch, out_height, out_width, _ = output
    else:
        _, depth, height, width = (int(n) for n in data.shape)
        batch, _, out_height, out_width = output
    pixels = batch * out_height * out_width
    padded = _padded(pixels, multiple)

    def value(pixel: Any, k: Any) -> Any:
        if last:
            row, column, channel = k // (columns * depth), k // depth % columns, k % depth
        else:
            channel, row, column = k // (rows * columns), k // columns % rows, k % columns
        image, y, x = 0, pixel // out_width, pixel % out_width
        if batch > 1:
            image, y = y // out_height, y % out_height
        y = y * strides[0] + row * dilation[0] - top
        x = x * strides[1] + column * dilation[1] - left
        read = data[image, y, x, channel] if last else data[image, channel, y, x]
        inside = [pixel < pixels] if padded > pixels else []
        if any(padding):
            inside += [y >= 0, y < height, x >= 0, x < width]
        if not inside:
            return read
        return tirx.if_then_else(tirx.all(*inside), read, tirx.const(0, str(data.dtype)))

    length = rows * columns * depth
    if last:
        return te.compute((padded, length), value, name="patches")
    return te.compute((length, padded), lambda k, pixel: value(pixel, k), name="patches")


def multiply(
    patches: Any,
    weight: Any,
    output: Sequence[int],
    dtype: str,
    parts: int,
    name: str,
    last: bool,
    notes: dict[str, Any] | None = None,
) -> Any:
    """The convolution's output from the result of :func:`gather` and (products, channels) weights if
    channels come ``last``, else (channels, products). ``notes``: annotations of the product."""
    from tvm import te

    left, right = (patches, weight) if last else (weight, patches)
    sums = _sums(left, right, dtype, parts, notes)

    def total(i: Any, j: Any) -> Any:
        return _total(sums, parts, i, j)

    if last:
        _, out_height, out_width, _ = output
        return te.compute(
            output, lambda n, y, x, c: total((n * out_height + y) * out_width + x, c), name=name
        )
    _, _, out_height, out_width = output
    return te.compute(
        output, lambda n, c, y, x: total(c, (n * out_height + y) * out_width + x), name=name
    )


def _sums(left: Any, right: Any, dtype: str, parts: int, notes: dict[str, Any] | None) -> Any:
    """The product (parts, height, width) of two matrices; the parts of a sum are still to be added."""
    from tvm import te

    height, length = (int(n) for n in left.shape)
    width = int(right.shape[1])
    one = length // parts
    k = te.reduce_axis((0, one), "k")

    def term(part: Any, i: Any, j: Any) -> Any:
        at = part * one + k
        return te.sum(left[i, at].astype(dtype) * right[at, j].astype(dtype), axis=k)

    return te.compute((parts, height, width), term, name="product", attrs=notes)


def _total(sums: Any, parts: int, i: Any, j: Any) -> Any:
    return functools.reduce(operator.add, (sums[part, i, j] for part in range(parts)))
