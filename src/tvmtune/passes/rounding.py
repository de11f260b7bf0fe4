"""Quantization to integers as the ONNX standard defines it: halves are rounded to even.

TVM's legalization rounds halves away from zero, by a call of the C library for each value: no vector
unit has an instruction for that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmtune.passes.constants import constant_value
from tvmtune.types import product


def _quantize(builder: Any, call: Any) -> Any:
    dtype = str(call.ty.dtype)
    if "int" not in dtype or str(call.args[0].ty.dtype) != "float32":
        return _tvm(builder, call)
    axis = int(call.attrs.axis)

    scale, zero = map(_tensor, call.args[1:3])
    known = constant_value(scale)
    scales = [] if known is not None and (known == 1).all() else [scale]

    def program(x: Any, zero: Any, *scales: Any) -> Any:
        return quantize(x, scales[0] if scales else None, zero, axis, dtype)

    return builder.call_te(program, call.args[0], zero, *scales, primfunc_name_hint="quantize")


def _dequantize(builder: Any, call: Any) -> Any:
    is_byte = str(call.args[0].ty.dtype) in ("int8", "uint8")
    is_one = all(_size(each) == 1 for each in call.args[1:3])
    if not is_byte or not is_one or str(call.ty.dtype) != "float32":
        return _tvm(builder, call)
    arguments = [call.args[0], *map(_tensor, call.args[1:3])]
    return builder.call_te(_dequantized, *arguments, primfunc_name_hint="dequantize")


def _dequantized(x: Any, scale: Any, zero: Any) -> Any:
    from tvm import te

    def element(*index: Any) -> Any:
        steps = x(*index).astype("int32") - _only(zero).astype("int32")
        return steps.astype("float32") * _only(scale)

    return te.compute(x.shape, element, name="dequantized")


def _tvm(builder: Any, call: Any) -> Any:
    import tvm

    return tvm.ir.Op.get(call.op.name).get_attr("FLegalize")(builder, call)


def _size(parameter: Any) -> int:
    return product([int(n) for n in parameter.ty.shape])


def _tensor(parameter: Any) -> Any:
    """A constant of one value as a vector: TVM makes scalars a part of the kernel, and there would be
    one for each scale."""
    import tvm
    from tvm import relax

    if isinstance(parameter, tvm.ir.GenericConst) and _size(parameter) == 1:
        return relax.const(parameter.value.numpy().reshape(1))
    return parameter


def _only(tensor: Any) -> Any:
    return tensor(*[0] * len(tensor.shape))


LEGALIZERS = {"relax.quantize": _quantize, "relax.dequantize": _dequantize}


def _float_within(bound: int) -> float:
    """The float32 nearest to an integer that is no farther from 0: 2**31 - 1 would become 2**31, which
    int32 cannot hold."""
    nearest = np.float32(bound)
    return float(
        nearest if abs(int(nearest)) <= abs(bound) else np.nextafter(nearest, np.float32(0))
    )


def quantize(x: Any, scale: Any, zero: Any, axis: int, dtype: str) -> Any:
    """``clip(round(x / scale) + zero)`` for a TE tensor in float32. ``scale`` and ``zero`` are tensors
    of one value, or of one for each index of ``axis``; the scale is 1 if None.

    Values are divided, not multiplied by a reciprocal: averages of bytes of the same scale often lie
    exactly between two integers, and a product would fall on either side.
    """
    from tvm import te, tirx

    axis %= max(len(x.shape), 1)

    def at(parameter: Any, index: tuple[Any, ...]) -> Any:
        is_single = all(int(n) == 1 for n in parameter.shape)
        return _only(parameter) if is_single else parameter(index[axis])

    def element(*index: Any) -> Any:
        quotient = x(*index) if scale is None else x(*index) / at(scale, index)
        steps = tirx.nearbyint(quotient) + at(zero, index).astype("float32")
        low, high = (
            tirx.const(_float_within(int(bound.value)), "float32")
            for bound in (tirx.min_value(dtype), tirx.max_value(dtype))
        )
        clipped = tirx.min(tirx.max(steps, low), high)
        # To narrow integers by way of int32, as vector units convert.
        return (clipped.astype("int32") if dtype in ("int8", "uint8") else clipped).astype(dtype)

    return te.compute(x.shape, element, name="quantized")
