"""Quantization as PyTorch's PT2E flow writes it (``torch.ops.quantized_decomposed``).

A layer is the float operator between dequantize and quantize. Backends compute these in integers where
they can. Halves are rounded to even.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tvm import relax

from tvmtune.networks.torch.converters.arithmetic import dtype_name
from tvmtune.networks.torch.program import arguments

NAMESPACE = "quantized_decomposed"
"""Of PyTorch's operators that stand around quantized layers."""

DTYPES = (torch.int8, torch.uint8, torch.int16, torch.int32)
"""Of quantized values."""


def _quantize(node: Any, importer: Any) -> Any:
    given = _arguments(node)
    emit, dtype = importer.block_builder.emit, _dtype(given["dtype"])
    x = importer.env[given["input"]]
    if str(x.ty.dtype) != "float32":
        x = emit(relax.op.astype(x, "float32"))
    scale, zero, axis = _parameters(given, importer)
    low, high = (int(given[name]) for name in ("quant_min", "quant_max"))
    bounds = torch.iinfo(given["dtype"])
    if (low, high) == (bounds.min, bounds.max):
        return emit(relax.op.quantize(x, scale, zero, axis=axis, out_dtype=dtype))
    if _is_constant(scale) and _is_constant(zero) and scale.value.numpy().ndim == 0:
        # Bounds of floats are found, and become part of a kernel.
        step, middle = float(scale.value.numpy()), int(zero.value.numpy())
        x = emit(relax.op.clip(x, (low - middle) * step, (high - middle) * step))
        return emit(relax.op.quantize(x, scale, zero, axis=axis, out_dtype=dtype))
    wide = emit(relax.op.quantize(x, scale, zero, axis=axis, out_dtype=dtype))
    wide = emit(relax.op.maximum(wide, relax.const(low, dtype)))
    return emit(relax.op.minimum(wide, relax.const(high, dtype)))


def _dequantize(node: Any, importer: Any) -> Any:
    given = _arguments(node)
    _dtype(given["dtype"])
    result = given.get("out_dtype") or torch.float32
    scale, zero, axis = _parameters(given, importer)
    emit = importer.block_builder.emit
    y = emit(relax.op.dequantize(importer.env[given["input"]], scale, zero, axis=axis))
    return y if result is torch.float32 else emit(relax.op.astype(y, dtype_name(result)))


def _choose(node: Any, importer: Any) -> Any:
    """Scale and zero point that cover the values of a tensor and 0."""
    given = _arguments(node)
    _dtype(given["dtype"])
    emit = importer.block_builder.emit
    x = emit(relax.op.astype(importer.env[given["input"]], "float32"))
    low, high = int(given["quant_min"]), int(given["quant_max"])

    def number(value: float) -> Any:
        return relax.const(value, "float32")

    least = emit(relax.op.minimum(emit(relax.op.min(x)), number(0)))
    most = emit(relax.op.maximum(emit(relax.op.max(x)), number(0)))
    span = emit(relax.op.divide(emit(relax.op.subtract(most, least)), number(high - low)))
    scale = emit(relax.op.maximum(span, number(float(given["eps"]))))
    steps = emit(relax.op.round(emit(relax.op.divide(least, scale))))
    zero = emit(relax.op.clip(emit(relax.op.subtract(number(low), steps)), low, high))
    results = [
        emit(relax.op.reshape(emit(relax.op.astype(value, dtype)), [1]))
        for value, dtype in ((scale, "float64"), (zero, "int64"))
    ]
    return emit(relax.Tuple(results))


def _arguments(node: Any) -> dict[str, Any]:
    """The arguments by the names that all operators share."""
    shared = {
        "scales": "scale",
        "zero_points": "zero_point",
        "qmin": "quant_min",
        "qmax": "quant_max",
    }
    return {shared.get(name, name): value for name, value in arguments(node).items()}


def _dtype(dtype: Any) -> str:
    if dtype not in DTYPES:
        raise NotImplementedError(f"values of {dtype} are not supported")
    return dtype_name(dtype)


def _parameters(given: Mapping[str, Any], importer: Any) -> tuple[Any, Any, int]:
    """Scale, zero point and axis: constants, or scalars that are computed at run time."""
    axis = given.get("axis")
    scale, zero = (_constant(given[name], importer) for name in ("scale", "zero_point"))
    if scale is None or zero is None:
        if axis is not None:
            raise NotImplementedError("its scales are not constant")
        scalar = _scalar(given["scale"], "float32", importer)
        return scalar, _scalar(given["zero_point"], "int32", importer), 0
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        raise NotImplementedError(f"its scale is {_worst(scale)}; it must be positive and finite")
    if axis is None:
        return relax.const(scale.item(), "float32"), relax.const(zero.item(), "int32"), 0
    shape = given["input"].meta["val"].shape
    extent = int(shape[axis])
    if scale.shape != (extent,) or zero.size not in (1, extent):
        raise NotImplementedError(
            f"it has {scale.size} scales and {zero.size} zero points for {extent} channels"
        )
    zeros = np.full(extent, zero.reshape(-1), "int32")
    return relax.const(scale.astype("float32")), relax.const(zeros), axis % len(shape)


def _worst(scale: np.ndarray) -> float:
    return float(next(s for s in scale.reshape(-1) if not (math.isfinite(s) and s > 0)))


def _constant(argument: Any, importer: Any) -> np.ndarray | None:
    """The values of a number or of a weight; None stands for 0."""
    if not isinstance(argument, torch.fx.Node):
        return np.asarray(0 if argument is None else argument)
    tensor = importer.constants.get(argument.name)
    return None if tensor is None else tensor.detach().numpy()


def _scalar(argument: Any, dtype: str, importer: Any) -> Any:
    if not isinstance(argument, torch.fx.Node):
        return relax.const(argument, dtype)
    emit = importer.block_builder.emit
    return emit(relax.op.reshape(emit(relax.op.astype(importer.env[argument], dtype)), []))


def _is_constant(expr: Any) -> bool:
    from tvm.ir import GenericConst

    return isinstance(expr, GenericConst)


CONVERTERS = {
    "choose_qparams.tensor": _choose,
    "dequantize_per_channel.default": _dequantize,
    "dequantize_per_tensor.default": _dequantize,
    "dequantize_per_tensor.tensor": _dequantize,
    "dequantize_per_tensor.tensor2": _dequantize,
    "quantize_per_channel.default": _quantize,
    "quantize_per_tensor.default": _quantize,
    "quantize_per_tensor.tensor": _quantize,
    "quantize_per_tensor.tensor2": _quantize,
}
