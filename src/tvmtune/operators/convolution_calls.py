"""What algorithms for convolutions ask about a ``relax.nn.conv1d``, ``conv2d`` or ``conv3d``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvmtune.passes.bindings import is_float32
from tvmtune.static_shapes import has_static_shapes

_LAYOUTS = (("NWC", "WIO", "NWC"), ("NHWC", "HWIO", "NHWC"), ("NDHWC", "DHWIO", "NDHWC"))
"""Of data, weights and output, for one to three dimensions."""


def is_plain(call: Any, *, grouped: bool = False) -> bool:
    """Whether its channels come last and it has float32 values, constant weights, static shapes and,
    unless it may be ``grouped``, one group."""
    import tvm

    attrs = call.attrs
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    return (
        layouts in _LAYOUTS
        and (grouped or attrs.groups == 1)
        and isinstance(call.args[1], tvm.ir.GenericConst)
        and is_float32(call)
        and has_static_shapes(call)
    )


@dataclass(frozen=True)
class Reads:
    """Where a convolution reads its data, channels last."""

    strides: Sequence[int]
    dilation: Sequence[int]
    before: Sequence[int]
    """Padding, along each axis of a pixel; negative if elements are left out."""
    after: Sequence[int]

    @classmethod
    def of(cls, call: Any) -> Reads:
        attrs = call.attrs
        strides, dilation, around = (
            [int(n) for n in each] for each in (attrs.strides, attrs.dilation, attrs.padding)
        )
        return cls(strides, dilation, around[: len(strides)], around[len(strides) :])

    @property
    def dims(self) -> int:
        return len(self.strides)

    def padded(self, data: Any, attrs: dict[str, Any]) -> Any:
        """The data, in TE, with zeros around it; itself without padding. ``attrs`` are those of the
        block that pads."""
        from tvm import topi

        added = [(0, *(max(n, 0) for n in each), 0) for each in (self.before, self.after)]
        if not any(map(any, added)):
            return data
        return topi.nn.pad(data, *added, name="padding", attrs=attrs)

    def taps(self, window: Sequence[int]) -> list[Any]:
        """Axes of a sum over a kernel of these extents."""
        from tvm import te

        names = "zyx"[-len(window) :]
        return [te.reduce_axis((0, n), f"k{name}") for n, name in zip(window, names, strict=True)]

    def at(self, pixel: Sequence[Any], taps: Sequence[Any]) -> list[Any]:
        """The position in the padded data."""
        left_out = [max(-n, 0) for n in self.before]
        steps = zip(pixel, self.strides, taps, self.dilation, left_out, strict=True)
        return [o * stride + tap * apart + crop for o, stride, tap, apart, crop in steps]
