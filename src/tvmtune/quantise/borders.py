"""Between floats, (N, C, H, W), and the whole numbers of a region, (N/b, C/c, H, W, b, c): kernels of
the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvmtune.quantise.integers import HIGHEST, LOWEST

PACK, UNPACK = NAMES = "pack_int8", "unpack_int8"
"""Kernels."""
_ALONE = {"op_pattern": 8}
"""Not fused with anything (TVM's kOpaque), so that the float kernels beside them are those of the
reference and sum in the same order: rounding makes a whole step of the last bit of a float."""


@dataclass(frozen=True)
class Form:
    """How whole numbers lie in memory: in blocks of ``batch`` and ``block`` channels, as int8, or with
    an ``offset`` added as uint8."""

    batch: int = 1
    block: int = 16
    offset: int = 0

    @property
    def dtype(self) -> str:
        return "uint8" if self.offset else "int8"

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of a tensor (N, C, H, W), in whole batches and blocks."""
        batch, channels, height, width = shape
        b, c = self.batch, self.block
        return (-(-batch // b), -(-channels // c), height, width, b, c)


def pack(builder: Any, value: Any, exponent: int, form: Form) -> Any:
    """A call that rounds to steps of ``2^exponent``, halves to even, and packs; what lies beyond the
    tensor's channels and batch stands for zero."""
    from tvm import te, tirx

    shape = tuple(int(d) for d in value.ty.shape)
    packed = form.shape(shape)
    b, c = form.batch, form.block
    whole = (packed[0] * b, packed[1] * c) == shape[:2]

    def compute(x: Any) -> Any:
        def element(n: Any, co: Any, y: Any, z: Any, bi: Any, ci: Any) -> Any:
            item, channel = n * b + bi, co * c + ci
            steps = tirx.nearbyint(x(item, channel, y, z) * tirx.const(2.0**-exponent, "float32"))
            low, high = (tirx.const(float(end), "float32") for end in (LOWEST, HIGHEST))
            cut = tirx.min(tirx.max(steps, low), high)
            if form.offset:
                cut = cut + tirx.const(float(form.offset), "float32")
            cut = cut.astype(form.dtype)
            if whole:
                return cut
            inside = tirx.all(item < shape[0], channel < shape[1])
            return tirx.if_then_else(inside, cut, tirx.const(form.offset, form.dtype))

        return te.compute(packed, element, name=PACK)

    return builder.call_te(compute, value, primfunc_name_hint=PACK, primfunc_attrs=_ALONE)


def unpack(builder: Any, value: Any, exponent: int, shape: tuple[int, ...], form: Form) -> Any:
    """A call that gives a packed tensor's values in float32."""
    from tvm import te, tirx

    b, c = form.batch, form.block

    def compute(x: Any) -> Any:
        def element(n: Any, channel: Any, y: Any, z: Any) -> Any:
            found = x(n // b, channel // c, y, z, n % b, channel % c).astype("float32")
            if form.offset:
                found = found - tirx.const(float(form.offset), "float32")
            return found * tirx.const(2.0**exponent, "float32")

        return te.compute(shape, element, name=UNPACK)

    return builder.call_te(compute, value, primfunc_name_hint=UNPACK, primfunc_attrs=_ALONE)
