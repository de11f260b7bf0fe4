"""What a convolution reads along each axis of its images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmtune.passes import constants
from tvmtune.passes.bindings import is_constant, operator_of
from tvmtune.static_shapes import static_shape

CONVOLUTIONS = ("nn.conv1d", "nn.conv2d", "nn.conv3d")


@dataclass(frozen=True)
class Axis:
    """A convolution along one axis of its images."""

    letter: str
    """Of the axis, in layouts."""
    extent: int
    """Of the input."""
    outputs: int
    taps: int
    stride: int
    dilation: int
    before: int
    """Padding; if negative, so many elements are not read."""
    after: int

    def start(self, tap: int, output: int) -> int:
        """The element of the input that a tap reads for an output; outside of it is padding."""
        return output * self.stride + tap * self.dilation - self.before

    def reading(self, tap: int) -> range:
        """The outputs for which a tap reads the input, not padding."""
        first = -(self.start(tap, 0) // self.stride)
        stop = (self.extent - 1 - self.start(tap, 0)) // self.stride + 1
        return range(max(first, 0), min(stop, self.outputs))


def axes_of(expr: Any) -> list[Axis]:
    """Those of a convolution with a constant kernel and known shapes; none for other expressions."""
    if operator_of(expr) not in CONVOLUTIONS or not is_constant(expr.args[1]):
        return []
    attrs = expr.attrs
    data, kernel, output = (static_shape(each) for each in (*expr.args, expr))
    if data is None or kernel is None or output is None:
        return []
    spatial = [letter for letter in str(attrs.data_layout) if letter in "DHW"]
    before, after = attrs.padding[: len(spatial)], attrs.padding[len(spatial) :]
    return [
        Axis(
            letter,
            data[str(attrs.data_layout).index(letter)],
            output[output_layout(expr).index(letter)],
            kernel[str(attrs.kernel_layout).index(letter)],
            int(attrs.strides[i]),
            int(attrs.dilation[i]),
            int(before[i]),
            int(after[i]),
        )
        for i, letter in enumerate(spatial)
    ]


def output_layout(call: Any) -> str:
    """That of the result of a convolution, e.g. ``NHWC``."""
    return str(call.attrs.out_layout) or str(call.attrs.data_layout)


def with_taps(call: Any, data: Any, axes: Sequence[Axis], taps: Sequence[slice]) -> Any:
    """The convolution ``call`` of ``data`` along these axes, with some taps of its kernel."""
    attrs = call.attrs
    kept = {axis.letter: each for axis, each in zip(axes, taps, strict=True)}
    weight = constants.values(call.args[1])[
        tuple(kept.get(letter, slice(None)) for letter in str(attrs.kernel_layout))
    ]
    return remade(
        call,
        data,
        constants.share(np.ascontiguousarray(weight)),
        padding=[*(axis.before for axis in axes), *(axis.after for axis in axes)],
        dilation=[axis.dilation for axis in axes],
    )


def remade(
    call: Any,
    data: Any,
    weight: Any,
    *,
    padding: Sequence[int],
    dilation: Sequence[int] | None = None,
) -> Any:
    """The convolution ``call`` of other operands, with another padding and perhaps dilation."""
    from tvm import relax

    attrs = call.attrs
    operator = getattr(relax.op.nn, operator_of(call).removeprefix("nn."))
    return operator(
        data,
        weight,
        strides=attrs.strides,
        padding=padding,
        dilation=attrs.dilation if dilation is None else dilation,
        groups=attrs.groups,
        data_layout=attrs.data_layout,
        kernel_layout=attrs.kernel_layout,
        out_layout=attrs.out_layout,
        out_dtype=attrs.out_dtype,
    )
