"""Between the CPU's tensors, (N, C, H, W) in float32, and the accelerator's, (N/b, C/c, H, W, b, c) in
int8: kernels of the CPU."""

from __future__ import annotations

from typing import Any

from tvmtune.quantise.integers import HIGHEST, LOWEST
from tvmtune_vta.config import Config

PACK, UNPACK = NAMES = "vta_pack", "vta_unpack"
"""Kernels."""
_ALONE = {"op_pattern": 8}
"""Not fused with anything (TVM's kOpaque), so that the float kernels beside them are those of the
reference and sum in the same order: rounding makes a whole step of the last bit of a float."""


def packed_shape(shape: tuple[int, ...], config: Config) -> tuple[int, ...]:
    """Of a tensor (N, C, H, W), in whole batches and blocks."""
    batch, channels, height, width = shape
    b, c = config.batch, config.block
    return (-(-batch // b), -(-channels // c), height, width, b, c)


def pack(builder: Any, value: Any, exponent: int, config: Config) -> Any:
    """A call that rounds to steps of ``2^exponent``, halves to even, and packs; what lies beyond the
    tensor's channels and batch is zero."""
    from tvm import te, tirx

    shape = tuple(int(d) for d in value.ty.shape)
    packed = packed_shape(shape, config)
    b, c = config.batch, config.block
    whole = (packed[0] * b, packed[1] * c) == shape[:2]

    def compute(x: Any) -> Any:
        def element(n: Any, co: Any, y: Any, z: Any, bi: Any, ci: Any) -> Any:
            item, channel = n * b + bi, co * c + ci
            steps = tirx.nearbyint(x(item, channel, y, z) * tirx.const(2.0**-exponent, "float32"))
            low, high = (tirx.const(float(end), "float32") for end in (LOWEST, HIGHEST))
            cut = tirx.min(tirx.max(steps, low), high).astype("int8")
            if whole:
                return cut
            inside = tirx.all(item < shape[0], channel < shape[1])
            return tirx.if_then_else(inside, cut, tirx.const(0, "int8"))

        return te.compute(packed, element, name=PACK)

    return builder.call_te(compute, value, primfunc_name_hint=PACK, primfunc_attrs=_ALONE)


def unpack(builder: Any, value: Any, exponent: int, shape: tuple[int, ...], config: Config) -> Any:
    """A call that gives a packed tensor's values in float32."""
    from tvm import te, tirx

    b, c = config.batch, config.block

    def compute(x: Any) -> Any:
        def element(n: Any, channel: Any, y: Any, z: Any) -> Any:
            found = x(n // b, channel // c, y, z, n % b, channel % c)
            return found.astype("float32") * tirx.const(2.0**exponent, "float32")

        return te.compute(shape, element, name=UNPACK)

    return builder.call_te(compute, value, primfunc_name_hint=UNPACK, primfunc_attrs=_ALONE)
