"""Computes transposed convolutions by convolutions of the small image.

TVM's kernels insert zeros between the pixels and multiply by them. Of an output's coordinate, the
remainder by the stride decides which taps of the kernel reach it. For each remainder there is a
convolution with these taps, at most kernel / stride of them, over the image as it is. All of them are
computed as the channels of one convolution, whose results then take their places (Shi et al., "Is the
deconvolution layer the same as a convolutional layer?", 2016).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.passes import constants
from tvmtune.passes.bindings import bindings, is_constant, operator_of, rebind
from tvmtune.static_shapes import static_shape
from tvmtune.types import product

if TYPE_CHECKING:
    import tvm

_LAYOUTS = {
    "nn.conv1d_transpose": ("NCW", "IOW"),
    "nn.conv2d_transpose": ("NCHW", "IOHW"),
    "nn.conv3d_transpose": ("NCDHW", "IODHW"),
}


@dataclass(frozen=True)
class _Axis:
    """A transposed convolution along one axis of its images."""

    stride: int
    taps: int
    """Of the kernel, rounded up to a multiple of the stride, for each remainder."""
    before: int
    """Padding of the convolution."""
    after: int
    first: int
    """Results before the first output, which are dropped."""
    outputs: int


def rewrite(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` without transposed convolutions whose kernels are constant; itself if there are none.

    Left as they are: those with dilation, with padding that drops whole pixels, and in other layouts
    than TVM's kernels have.
    """
    made: dict[Any, Callable[[Any], Any]] = {
        binding.var: functools.partial(_rewritten, binding.value, axes)
        for binding in bindings(mod)
        if (axes := _axes(binding.value))
    }
    return rebind(mod, made)


def _axes(expr: Any) -> list[_Axis]:
    """The axes of a transposed convolution that can be rewritten; empty for any other expression."""
    name = operator_of(expr)
    if name not in _LAYOUTS or not is_constant(expr.args[1]):
        return []
    attrs = expr.attrs
    layouts = str(attrs.data_layout), str(attrs.kernel_layout)
    if layouts != _LAYOUTS[name] or str(attrs.out_layout) not in ("", layouts[0]):
        return []
    data, kernel, output = (static_shape(each) for each in (*expr.args, expr))
    if data is None or kernel is None or output is None or any(d != 1 for d in attrs.dilation):
        return []
    axes = []
    for i, stride in enumerate(map(int, attrs.strides)):
        extent, outputs, cropped = data[2 + i], output[2 + i], int(attrs.padding[i])
        taps = -(-kernel[2 + i] // stride)
        # Output o is result cropped + o; result stride * q + remainder is that of pixels q, q - 1, ...
        start, stop = cropped // stride, (cropped + outputs - 1) // stride + 1
        before, after = taps - 1 - start, stop - extent
        if before < 0 or after < 0:
            return []
        axes.append(_Axis(stride, taps, before, after, cropped - stride * start, outputs))
    return axes


def _rewritten(call: Any, axes: list[_Axis], mutator: Any) -> Any:
    from tvm import relax

    builder, rank, attrs = mutator.builder_, len(axes), call.attrs
    strides = [axis.stride for axis in axes]
    layout = _LAYOUTS[operator_of(call)][0]
    convolution = getattr(relax.op.nn, f"conv{rank}d")
    result = builder.emit(
        convolution(
            mutator.visit_expr(call.args[0]),
            constants.share(_kernel(constants.values(call.args[1]), axes, int(attrs.groups))),
            padding=[*(axis.before for axis in axes), *(axis.after for axis in axes)],
            groups=attrs.groups,
            data_layout=layout,
            kernel_layout=layout.replace("C", "I").replace("N", "O"),
            out_dtype=attrs.out_dtype,
        )
    )
    if any(stride > 1 for stride in strides):
        batch, channels, *extents = (int(extent) for extent in result.ty.shape)
        channels //= product(strides)
        result = builder.emit(relax.op.reshape(result, (batch, channels, *strides, *extents)))
        pairs = [axis for i in range(rank) for axis in (2 + rank + i, 2 + i)]
        result = builder.emit(relax.op.permute_dims(result, [0, 1, *pairs]))
        extents = [extent * stride for extent, stride in zip(extents, strides, strict=True)]
        result = builder.emit(relax.op.reshape(result, (batch, channels, *extents)))
    cropped = [i for i, axis in enumerate(axes) if axis.outputs < int(result.ty.shape[2 + i])]
    if not cropped:
        return result
    return relax.op.strided_slice(
        result,
        axes=[2 + i for i in cropped],
        begin=[axes[i].first for i in cropped],
        end=[axes[i].first + axes[i].outputs for i in cropped],
    )


def _kernel(weight: np.ndarray, axes: list[_Axis], groups: int) -> np.ndarray:
    """The kernel of the convolution, in the layout OIHW: (channels * remainders, inputs, taps...)."""
    inputs, channels, *extents = weight.shape
    rank, inputs = len(axes), inputs // groups
    missing = [axis.taps * axis.stride - n for axis, n in zip(axes, extents, strict=True)]
    padded = np.pad(weight, [(0, 0), (0, 0), *((0, count) for count in missing)])
    split = [extent for axis in axes for extent in (axis.taps, axis.stride)]
    parts = padded.reshape(groups, inputs, channels, *split)
    taps, remainders = (range(3 + first, 3 + 2 * rank, 2) for first in (0, 1))
    # A convolution reads its pixels in the opposite order.
    ordered = np.flip(parts, tuple(taps)).transpose(0, 2, *remainders, 1, *taps)
    return np.ascontiguousarray(
        ordered.reshape(
            groups * channels * product([axis.stride for axis in axes]),
            inputs,
            *(axis.taps for axis in axes),
        )
    )
