"""A convolution algorithm: im2col, then one matrix product.

An algorithm is a function from a Relax call to a tensor expression with the same result. The target's
rules schedule it: they tile the product, and may store the patches or gather them on the fly.
"""

from __future__ import annotations

from typing import Any

from tvmtune.types import Algorithm


def applies(call: Any) -> bool:
    """NHWC float32, one group, constant weights; more than one pixel per filter, since the direct
    program of a 1x1 convolution is a matrix product already."""
    import tvm

    attrs = call.attrs
    return (
        (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) == ("NHWC", "HWIO", "NHWC")
        and int(attrs.groups) == 1
        and isinstance(call.args[1], tvm.ir.GenericConst)
        and str(call.ty.dtype) == "float32"
        and [int(extent) for extent in call.args[1].ty.shape][:2] != [1, 1]
    )


def replace(builder: Any, call: Any, values: bool) -> Any:
    """The call as im2col + GEMM. The weights (rows, columns, in, out) become a matrix without a copy,
    so ``values`` makes no difference."""
    from tvmtune.passes import constants

    rows, columns, depth, out = (int(extent) for extent in call.args[1].ty.shape)
    matrix = constants.values(call.args[1]).reshape(rows * columns * depth, out)
    attrs = call.attrs

    def program(data: Any, weights: Any) -> Any:
        return convolution(
            data,
            weights,
            kernel=(rows, columns),
            strides=[int(n) for n in attrs.strides],
            dilation=[int(n) for n in attrs.dilation],
            padding=[int(n) for n in attrs.padding],
            output=[int(n) for n in call.ty.shape],
        )

    return builder.call_te(
        program,
        call.args[0],
        constants.share(matrix),
        primfunc_name_hint="conv2d_im2col",
        # The last stage is element-wise in the output: bias and activation fuse with it, as they do
        # with the direct convolution (4 = "out element-wise fusable").
        primfunc_attrs={"op_pattern": 4},
    )


def convolution(
    data: Any,
    weights: Any,
    *,
    kernel: tuple[int, int],
    strides: list[int],
    dilation: list[int],
    padding: list[int],
    output: list[int],
) -> Any:
    """(n, h, w, c) data and (rows x columns x c, out) weights to ``output``: (n, h', w', out)."""
    from tvm import te, topi

    top, left, bottom, right = padding
    if any(padding):
        data = topi.nn.pad(data, [0, top, left, 0], [0, bottom, right, 0], name="im2col_pad")
    depth = int(data.shape[3])
    (rows, columns), (batch, height, width, out) = kernel, output
    length = rows * columns * depth

    def patch(pixel: Any, k: Any) -> Any:
        """Row ``pixel`` of the matrix holds everything that this output pixel depends on."""
        row, column, channel = k // (columns * depth), k // depth % columns, k % depth
        image, y, x = pixel // (height * width), pixel // width % height, pixel % width
        y, x = y * strides[0] + row * dilation[0], x * strides[1] + column * dilation[1]
        return data[image, y, x, channel]

    patches = te.compute((batch * height * width, length), patch, name="im2col_patches")
    k = te.reduce_axis((0, length), "k")
    product = te.compute(
        (batch * height * width, out),
        lambda pixel, channel: te.sum(patches[pixel, k] * weights[k, channel], axis=k),
        name="im2col_product",
    )
    return te.compute(
        output,
        lambda n, y, x, channel: product[(n * height + y) * width + x, channel],
        name="conv2d_im2col",
    )


IM2COL = Algorithm("im2col", "relax.nn.conv2d", applies, replace)
