"""Quantization to integers as the ONNX standard defines it: halves are rounded to even.

TVM's legalization rounds halves away from zero, by a call of the C library for each value: no vector
unit has an instruction for that.
"""

from __future__ import annotations

from typing import Any


def _quantize(builder: Any, call: Any) -> Any:
    import tvm

    dtype = str(call.ty.dtype)
    if "int" not in dtype or str(call.args[0].ty.dtype) != "float32":
        return tvm.ir.Op.get("relax.quantize").get_attr("FLegalize")(builder, call)
    axis = int(call.attrs.axis)

    def program(x: Any, scale: Any, zero: Any) -> Any:
        return quantize(x, scale, zero, axis, dtype)

    arguments = [call.args[0], *map(_number, call.args[1:3])]
    return builder.call_te(program, *arguments, primfunc_name_hint="quantize")


def _number(parameter: Any) -> Any:
    """A constant of one value as a number, which becomes part of the kernel."""
    import tvm

    if isinstance(parameter, tvm.ir.GenericConst):
        values = parameter.value.numpy()
        if values.size == 1:
            return tvm.tirx.const(values.item(), str(values.dtype))
    return parameter


LEGALIZERS = {"relax.quantize": _quantize}


def quantize(x: Any, scale: Any, zero: Any, axis: int, dtype: str) -> Any:
    """``clip(round(x / scale) + zero)`` for a TE tensor in float32. ``scale`` and ``zero`` are numbers,
    or tensors of one value, or of one for each index of ``axis``."""
    from tvm import te, tirx

    axis %= max(len(x.shape), 1)

    def at(parameter: Any, index: tuple[Any, ...]) -> Any:
        if not isinstance(parameter, te.Tensor):
            return parameter
        extents = [int(n) for n in parameter.shape]
        if all(n == 1 for n in extents):
            return parameter(*[0] * len(extents))
        return parameter(index[axis])

    def element(*index: Any) -> Any:
        steps = tirx.nearbyint(x(*index) / at(scale, index)) + at(zero, index).astype("float32")
        low, high = (
            tirx.const(float(bound.value), "float32")
            for bound in (tirx.min_value(dtype), tirx.max_value(dtype))
        )
        clipped = tirx.min(tirx.max(steps, low), high)
        # To narrow integers by way of int32, as vector units convert.
        return (clipped.astype("int32") if dtype in ("int8", "uint8") else clipped).astype(dtype)

    return te.compute(x.shape, element, name="quantized")
