"""Drops the taps of convolutions, the positions of their kernels, that read nothing but padding.

Where the dilation is as large as the image, only a kernel's center reads it: the 3x3 convolutions of
DeepLab's pyramid become 1x1 (Chen et al., "Rethinking Atrous Convolution for Semantic Image
Segmentation", 2017, section 3.3). Kernels that are computed, such as those of quantized networks, keep
their taps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.passes import constants
from tvmtune.passes.bindings import bindings, is_constant, operator_of
from tvmtune.static_shapes import static_shape

if TYPE_CHECKING:
    import tvm

_CONVOLUTIONS = ("nn.conv1d", "nn.conv2d", "nn.conv3d")


def drop(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` without such taps of constant kernels in ``main``; itself if there are none."""
    from tvm import relax

    if not any(_trimmed_axes(binding.value) for binding in bindings(mod)):
        return mod

    @relax.expr_functor.mutator
    class Dropper(relax.PyExprMutator):
        def visit_call_(self, call: Any) -> Any:
            call = self.visit_expr_post_order(call)
            axes = _trimmed_axes(call)
            if not axes:
                return call
            attrs = call.attrs
            taps = {axis.letter: slice(axis.dropped, axis.dropped + axis.taps) for axis in axes}
            weight = constants.values(call.args[1])[
                tuple(taps.get(letter, slice(None)) for letter in str(attrs.kernel_layout))
            ]
            operator = getattr(relax.op.nn, operator_of(call).removeprefix("nn."))
            return operator(
                call.args[0],
                constants.share(np.ascontiguousarray(weight)),
                strides=attrs.strides,
                padding=[*(axis.before for axis in axes), *(axis.after for axis in axes)],
                dilation=[axis.dilation for axis in axes],
                groups=attrs.groups,
                data_layout=attrs.data_layout,
                kernel_layout=attrs.kernel_layout,
                out_layout=attrs.out_layout,
                out_dtype=attrs.out_dtype,
            )

    dropper = Dropper(mod)
    dropper.builder_.update_func(mod.get_global_var("main"), dropper.visit_expr(mod["main"]))
    return dropper.builder_.get()


@dataclass(frozen=True)
class _Axis:
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
    """Padding."""
    after: int
    dropped: int = 0
    """Taps of the kernel before these; ``taps`` and the padding do not count them."""

    def trimmed(self) -> _Axis:
        """Without the taps at both ends that read padding only."""
        read = [tap for tap in range(self.taps) if self._reads(tap)]
        if not read:
            return self
        # What remains needs padding of at least 0.
        first = min(read[0], self.before // self.dilation)
        last = max(read[-1], self.taps - 1 - self.after // self.dilation)
        taps = last - first + 1
        return replace(
            self,
            taps=taps,
            dilation=self.dilation if taps > 1 else 1,
            before=self.before - first * self.dilation,
            after=self.after - (self.taps - 1 - last) * self.dilation,
            dropped=first,
        )

    def _reads(self, tap: int) -> bool:
        start = tap * self.dilation - self.before
        stop = start + (self.outputs - 1) * self.stride + 1
        return any(0 <= at < self.extent for at in range(start, stop, self.stride))


def _trimmed_axes(expr: Any) -> list[_Axis]:
    """The trimmed axes of a convolution with a constant kernel; empty if no tap is to be dropped."""
    if operator_of(expr) not in _CONVOLUTIONS or not is_constant(expr.args[1]):
        return []
    attrs = expr.attrs
    data, kernel, output = (static_shape(each) for each in (*expr.args, expr))
    if data is None or kernel is None or output is None:
        return []
    spatial = [letter for letter in str(attrs.data_layout) if letter in "DHW"]
    before, after = attrs.padding[: len(spatial)], attrs.padding[len(spatial) :]
    out_layout = str(attrs.out_layout) or str(attrs.data_layout)
    whole = [
        _Axis(
            letter,
            data[str(attrs.data_layout).index(letter)],
            output[out_layout.index(letter)],
            kernel[str(attrs.kernel_layout).index(letter)],
            int(attrs.strides[i]),
            int(attrs.dilation[i]),
            int(before[i]),
            int(after[i]),
        )
        for i, letter in enumerate(spatial)
    ]
    trimmed = [axis.trimmed() for axis in whole]
    return trimmed if any(a.taps < b.taps for a, b in zip(trimmed, whole, strict=True)) else []
