"""CPU kernels that quantize and dequantize at the edges of a region, packing on the way.

Float tensors are (N, C, H, W); quantized ones are blocked, (N/b, C/c, H, W, b, c).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvmtune.quantize.integers import HIGHEST, LOWEST

PACK, UNPACK = NAMES = "pack_int8", "unpack_int8"
"""Names of the kernels. Workload keys hash them: do not change them."""
_NOT_FUSED = {"op_pattern": 8}
"""TVM's kOpaque. The float kernels next to these then equal the reference's and sum in the same order:
rounding would turn a difference in a float's last bit into a whole step."""


@dataclass(frozen=True)
class BlockedLayout:
    """Memory layout of quantized tensors: blocks of ``batch`` items and ``block`` channels, as int8, or
    as uint8 with an ``offset`` added."""

    batch: int = 1
    block: int = 16
    offset: int = 0

    @property
    def dtype(self) -> str:
        return "uint8" if self.offset else "int8"

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The packed shape (N/b, C/c, H, W, b, c) of a tensor (N, C, H, W), padded to full blocks."""
        batch, channels, height, width = shape
        b, c = self.batch, self.block
        return (-(-batch // b), -(-channels // c), height, width, b, c)


def pack(
    builder: Any, value: Any, exponent: int, layout: BlockedLayout, *, channels_last: bool = False
) -> Any:
    """A call that rounds to steps of ``2^exponent``, halves to even, clips and packs.

    Padding beyond the tensor's channels and batch stands for zero. ``value`` is (N, H, W, C) if
    ``channels_last``.
    """
    from tvm import te, tirx

    shape = tuple(int(d) for d in value.ty.shape)
    if channels_last:
        shape = (shape[0], shape[3], *shape[1:3])
    packed = layout.shape(shape)
    b, c = layout.batch, layout.block
    unpadded = (packed[0] * b, packed[1] * c) == shape[:2]

    def compute(x: Any) -> Any:
        def element(n: Any, co: Any, y: Any, z: Any, bi: Any, ci: Any) -> Any:
            item, channel = n * b + bi, co * c + ci
            read = x(item, y, z, channel) if channels_last else x(item, channel, y, z)
            steps = tirx.nearbyint(read * tirx.const(2.0**-exponent, "float32"))
            low, high = (tirx.const(float(end), "float32") for end in (LOWEST, HIGHEST))
            clipped = tirx.min(tirx.max(steps, low), high)
            if layout.offset:
                clipped = clipped + tirx.const(float(layout.offset), "float32")
            clipped = clipped.astype(layout.dtype)
            if unpadded:
                return clipped
            inside = tirx.all(item < shape[0], channel < shape[1])
            return tirx.if_then_else(inside, clipped, tirx.const(layout.offset, layout.dtype))

        return te.compute(packed, element, name=PACK)

    return builder.call_te(compute, value, primfunc_name_hint=PACK, primfunc_attrs=_NOT_FUSED)


def unpack(
    builder: Any, value: Any, exponent: int, shape: tuple[int, ...], layout: BlockedLayout
) -> Any:
    """A call that unpacks a tensor to (N, C, H, W) in float32."""
    from tvm import te, tirx

    b, c = layout.batch, layout.block

    def compute(x: Any) -> Any:
        def element(n: Any, channel: Any, y: Any, z: Any) -> Any:
            value = x(n // b, channel // c, y, z, n % b, channel % c).astype("float32")
            if layout.offset:
                value = value - tirx.const(float(layout.offset), "float32")
            return value * tirx.const(2.0**exponent, "float32")

        return te.compute(shape, element, name=UNPACK)

    return builder.call_te(compute, value, primfunc_name_hint=UNPACK, primfunc_attrs=_NOT_FUSED)
