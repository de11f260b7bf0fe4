"""Element-wise operators.

The importer converts numbers to the dtype of the tensor (``ids * 0.5`` becomes 0), divides integers as
integers, ignores ``alpha`` of sums and two parameters of ELU. It bounds integers by infinity, rounds
quotients only of operands of one dtype, joins only tensors of one dtype, and computes no functions such
as ``exp`` of integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from tvm import relax

from tvmtune.networks.importer_helpers import constant_power
from tvmtune.networks.relax_operators import Operators
from tvmtune.networks.torch.program import arguments


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype for sums and quotients of ``dtype``: at least float32."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def value(node: Any, importer: Any, argument: Any, dtype: torch.dtype) -> Any:
    """An argument, a node or a number, as a Relax value of ``dtype``."""
    wanted = dtype_name(dtype)
    if not isinstance(argument, torch.fx.Node):
        return relax.const(argument, wanted)
    tensor = importer.env[argument]
    if str(tensor.ty.dtype) == wanted:
        return tensor
    return importer.block_builder.emit(relax.op.astype(tensor, wanted))


def _binary(operator: Callable[..., Any]) -> Any:
    """PyTorch's promotion: both operands get the dtype in which PyTorch computes."""

    def convert(node: Any, importer: Any) -> Any:
        emit = importer.block_builder.emit
        first, second = node.args[:2]
        dtype = _common_dtype(node)
        left, right = (value(node, importer, argument, dtype) for argument in (first, second))
        alpha = node.kwargs.get("alpha", 1)
        combine, multiply = operator, relax.op.multiply
        if dtype is torch.bool:
            combine, multiply = (_ON_BOOLEANS.get(f, f) for f in (combine, multiply))
        if alpha != 1:
            right = emit(multiply(right, relax.const(alpha, dtype_name(dtype))))
        return emit(combine(left, right))

    return convert


def _common_dtype(node: Any) -> torch.dtype:
    """The dtype in which PyTorch computes: that of the result, or of the operands of a comparison."""
    result = node.meta["val"].dtype
    if result is not torch.bool:
        return result
    operands = (a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in node.args[:2])
    return torch.result_type(*operands)


def _reversed_subtraction(a: Any, b: Any) -> Any:
    return relax.op.subtract(b, a)


def _where(node: Any, importer: Any) -> Any:
    condition, *branches = node.args
    dtype = node.meta["val"].dtype
    first, second = (value(node, importer, argument, dtype) for argument in branches)
    chosen = relax.op.where(value(node, importer, condition, torch.bool), first, second)
    return importer.block_builder.emit(chosen)


def _power(node: Any, importer: Any) -> Any:
    base, exponent = node.args
    dtype = node.meta["val"].dtype
    emit = importer.block_builder.emit
    if isinstance(exponent, (int, float)):
        x = value(node, importer, base, dtype)
        result = constant_power(emit, x, exponent, floating=dtype.is_floating_point)
        if result is not None:
            return result
    if dtype.is_floating_point:
        return _binary(relax.op.power)(node, importer)
    wide = (value(node, importer, argument, torch.float64) for argument in (base, exponent))
    return emit(
        relax.op.astype(emit(relax.op.round(emit(relax.op.power(*wide)))), dtype_name(dtype))
    )


def _division(node: Any, importer: Any) -> Any:
    """``x // y``, and quotients that are rounded towards zero."""
    mode, dtype = node.kwargs.get("rounding_mode"), node.meta["val"].dtype
    if mode is None:
        return _binary(relax.op.divide)(node, importer)
    if not dtype.is_floating_point:
        operator = relax.op.floor_divide if mode == "floor" else relax.op.divide
        return _binary(operator)(node, importer)
    # PyTorch rounds the exact quotient down: 1 // 0.1 is 9, as 0.1 in float32 is more than a tenth.
    # (In float64 it may be 10 here.) It rounds numbers to the dtype first, but to no less than float32.
    given = wide(dtype)
    in_its_dtype = mode == "trunc" or _is_power_of_two(node.args[1])
    computed = given if in_its_dtype else torch.float64
    op = Operators(importer.block_builder)
    left, right = (
        op.astype(value(node, importer, argument, given), dtype_name(computed))
        for argument in node.args
    )
    quotient = op.divide(left, right)
    rounded = op.floor(quotient) if mode == "floor" else op.trunc(quotient)
    return op.astype(rounded, dtype_name(dtype))


def _is_power_of_two(argument: Any) -> bool:
    return not isinstance(argument, torch.fx.Node) and abs(math.frexp(argument)[0]) == 0.5


def _clamp(node: Any, importer: Any) -> Any:
    """``clamp(x, min, max)``: no less than the one and then no more than the other."""
    dtype, op = node.meta["val"].dtype, Operators(importer.block_builder)
    given = arguments(node)
    low, high = given["min"], given["max"]
    x = value(node, importer, node.args[0], dtype)
    numbers = not any(isinstance(bound, torch.fx.Node) for bound in (low, high))
    if dtype.is_floating_point and numbers:
        limits = (-math.inf if low is None else low, math.inf if high is None else high)
        return importer.block_builder.emit(relax.op.clip(x, *limits))
    if low is not None:
        x = op.maximum(x, value(node, importer, low, dtype))
    return x if high is None else op.minimum(x, value(node, importer, high, dtype))


def _function(operator: Callable[..., Any]) -> Any:
    """A function of real numbers; of integers it is PyTorch's default dtype."""

    def convert(node: Any, importer: Any) -> Any:
        x = value(node, importer, node.args[0], node.meta["val"].dtype)
        return importer.block_builder.emit(operator(x))

    return convert


def _reciprocal(x: Any) -> Any:
    return relax.op.divide(relax.const(1.0, str(x.ty.dtype)), x)


def magnitude(x: Any, y: Any) -> Any:
    """The root of the sum of both squares, where that is no finite number, or vanishes, too."""
    op, kind = relax.op, str(x.ty.dtype)
    first, second = op.abs(x), op.abs(y)
    large, small = op.maximum(first, second), op.minimum(first, second)
    one, infinity, nan = (relax.const(number, kind) for number in (1.0, math.inf, math.nan))
    ratio = op.where(op.equal(large, small), one, op.divide(small, large))
    size = op.multiply(large, op.sqrt(op.add(one, op.multiply(ratio, ratio))))
    size = op.where(op.logical_or(op.isnan(x), op.isnan(y)), nan, size)
    return op.where(op.logical_or(op.isinf(x), op.isinf(y)), infinity, size)


def _angle(x: Any) -> Any:
    """Of real numbers."""
    zero, half = (relax.const(number, str(x.ty.dtype)) for number in (0.0, math.pi))
    angle = relax.op.where(relax.op.less(x, zero), half, zero)
    return relax.op.where(relax.op.isnan(x), x, angle)


def _exp2(x: Any) -> Any:
    return relax.op.exp(relax.op.multiply(x, relax.const(math.log(2), str(x.ty.dtype))))


def _copysign(node: Any, importer: Any) -> Any:
    op, dtype = Operators(importer.block_builder), node.meta["val"].dtype
    x, sign = op.abs(value(node, importer, node.args[0], dtype)), node.args[1]
    if not isinstance(sign, torch.fx.Node):
        return op.multiply(x, math.copysign(1.0, sign))
    y = value(node, importer, sign, dtype)
    zero, one = (relax.const(number, dtype_name(dtype)) for number in (0, 1))
    # 1 / -0.0 is less than 0, unlike -0.0; 1 / -inf is not.
    is_negative = op.logical_or(op.less(y, zero), op.less(op.divide(one, y), zero))
    return op.where(is_negative, op.negative(x), x)


def _without_nan(extremum: Callable[..., Any]) -> Callable[..., Any]:
    """An extremum of two values: the other one if one is NaN."""

    def combine(x: Any, y: Any) -> Any:
        found = relax.op.where(relax.op.isnan(y), x, extremum(x, y))
        return relax.op.where(relax.op.isnan(x), y, found)

    return combine


def _cat(node: Any, importer: Any) -> Any:
    given, result = arguments(node), node.meta["val"]
    # Those of shape (0,) join tensors of any rank.
    joined = [each for each in given["tensors"] if each.meta["val"].dim() == result.dim()]
    values = [value(node, importer, each, result.dtype) for each in joined]
    return importer.block_builder.emit(relax.op.concat(values, axis=given["dim"]))


def _logical(operator: Callable[..., Any]) -> Any:
    def convert(node: Any, importer: Any) -> Any:
        operands = (value(node, importer, argument, torch.bool) for argument in node.args)
        return importer.block_builder.emit(operator(*operands))

    return convert


def _bitwise(operator: Callable[..., Any], logical: Callable[..., Any]) -> Any:
    """On booleans, LLVM's bitwise operators of TVM see bytes rather than bits."""

    def convert(node: Any, importer: Any) -> Any:
        dtype = node.meta["val"].dtype
        operands = (value(node, importer, argument, dtype) for argument in node.args)
        return importer.block_builder.emit(
            (logical if dtype is torch.bool else operator)(*operands)
        )

    return convert


def _elu(node: Any, importer: Any) -> Any:
    """``scale * (x if x > 0 else alpha * (exp(input_scale * x) - 1))``, as in SELU."""
    values: dict[str, Any] = {"alpha": 1.0, "scale": 1.0, "input_scale": 1.0}
    values |= dict(zip(values, node.args[1:], strict=False)) | node.kwargs
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    alpha, scale, inner, one, zero = (
        relax.const(value, str(x.ty.dtype)) for value in (*values.values(), 1.0, 0.0)
    )
    below = emit(relax.op.exp(emit(relax.op.multiply(emit(relax.op.minimum(x, zero)), inner))))
    below = emit(relax.op.multiply(emit(relax.op.subtract(below, one)), alpha))
    return emit(relax.op.multiply(emit(relax.op.add(emit(relax.op.nn.relu(x)), below)), scale))


_ON_BOOLEANS = {
    relax.op.add: relax.op.logical_or,
    relax.op.maximum: relax.op.logical_or,
    relax.op.minimum: relax.op.logical_and,
    relax.op.multiply: relax.op.logical_and,
}
"""What PyTorch's operators on two booleans are."""

_BINARY = {
    "add": relax.op.add,
    "div": relax.op.divide,
    "eq": relax.op.equal,
    "ge": relax.op.greater_equal,
    "gt": relax.op.greater,
    "le": relax.op.less_equal,
    "lt": relax.op.less,
    "mul": relax.op.multiply,
    "ne": relax.op.not_equal,
    "remainder": relax.op.floor_mod,
    "rsub": _reversed_subtraction,
    "sub": relax.op.subtract,
}

_FUNCTIONS = {
    "acos": relax.op.acos,
    "acosh": relax.op.acosh,
    "angle": _angle,
    "asin": relax.op.asin,
    "asinh": relax.op.asinh,
    "atan": relax.op.atan,
    "atanh": relax.op.atanh,
    "cos": relax.op.cos,
    "cosh": relax.op.cosh,
    "erf": relax.op.erf,
    "exp": relax.op.exp,
    "exp2": _exp2,
    "log": relax.op.log,
    "reciprocal": _reciprocal,
    "rsqrt": relax.op.rsqrt,
    "sigmoid": relax.op.sigmoid,
    "sin": relax.op.sin,
    "sinh": relax.op.sinh,
    "sqrt": relax.op.sqrt,
    "tan": relax.op.tan,
    "tanh": relax.op.tanh,
}

CONVERTERS = {
    "_neg_view.default": _function(relax.op.negative),
    **{f"{name}.default": _function(operator) for name, operator in _FUNCTIONS.items()},
    **{
        f"{name}.{overload}": _binary(operator)
        for name, operator in _BINARY.items()
        for overload in ("Tensor", "Scalar")
    },
    **{
        f"bitwise_{name}.{overload}": _bitwise(
            getattr(relax.op, f"bitwise_{name}"), getattr(relax.op, f"logical_{name}")
        )
        for name in ("and", "or", "xor")
        for overload in ("Tensor", "Scalar")
    },
    "bitwise_not.default": _bitwise(relax.op.bitwise_not, relax.op.logical_not),
    "cat.default": _cat,
    "copysign.Scalar": _copysign,
    "copysign.Tensor": _copysign,
    "clamp.default": _clamp,
    "clamp.Tensor": _clamp,
    "div.Scalar_mode": _division,
    "div.Tensor_mode": _division,
    "elu.default": _elu,
    "fmax.default": _binary(_without_nan(relax.op.maximum)),
    "fmin.default": _binary(_without_nan(relax.op.minimum)),
    "hypot.default": _binary(magnitude),
    "logical_and.default": _logical(relax.op.logical_and),
    "logical_not.default": _logical(relax.op.logical_not),
    "logical_or.default": _logical(relax.op.logical_or),
    "logical_xor.default": _logical(relax.op.logical_xor),
    "maximum.default": _binary(relax.op.maximum),
    "minimum.default": _binary(relax.op.minimum),
    "pow.Scalar": _power,
    "pow.Tensor_Scalar": _power,
    "pow.Tensor_Tensor": _power,
    "where.self": _where,
}
