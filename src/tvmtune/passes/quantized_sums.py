"""Folds the scales of quantized sums, such as those of residual connections.

With x = sx (qx - zx), y = sy (qy - zy) and the result's scale s, (x + y) / s is
(sx / s) (qx - zx) + (sy / s) (qy - zy): no element is divided, and where zero is the least integer, the
result's limits are those of a ReLU. ONNX Runtime's QLinearAdd computes the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.passes.bindings import operator_of, rebind
from tvmtune.passes.quantized_kernels import BOUNDS
from tvmtune.passes.quantized_values import QuantizedValues

if TYPE_CHECKING:
    import tvm


@dataclass(frozen=True)
class _Sum:
    terms: list[Any]
    """Two dequantize calls."""
    scales: list[np.float32]
    """Of the terms, in steps of the result."""
    has_relu: bool
    """Whether there is a ReLU that the result's limits do not replace."""


def fold_scales(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` with such sums of bytes, each of one scale and zero point, quantized with a scale of 1;
    itself if there are none."""
    values = QuantizedValues(mod)
    return rebind(
        mod,
        {
            variable: partial(_folded, call, found)
            for variable, call in values.bindings.items()
            if operator_of(call) == "quantize" and (found := _sum(call, values))
        },
    )


def _folded(call: Any, found: _Sum, mutator: Any) -> Any:
    """The sum, quantized with a scale of 1."""
    from tvm import relax

    emit = mutator.builder_.emit
    terms = [
        emit(
            relax.op.dequantize(
                mutator.visit_expr(term.args[0]), relax.const(scale), term.args[2], axis=0
            )
        )
        for term, scale in zip(found.terms, found.scales, strict=True)
    ]
    total = emit(relax.op.add(*terms))
    if found.has_relu:
        total = emit(relax.op.nn.relu(total))
    dtype = str(call.ty.dtype)
    return relax.op.quantize(
        total, relax.const(np.float32(1)), call.args[2], axis=0, out_dtype=dtype
    )


def _sum(call: Any, values: QuantizedValues) -> _Sum | None:
    """What this quantize call rounds, if it is a sum of two dequantized values; nothing else may read
    the sum."""
    out = values.scaled(call)
    total = values.read_once(call.args[0])
    has_relu = operator_of(total) == "nn.relu"
    if has_relu:
        total = values.read_once(total.args[0])
    if out is None or operator_of(total) != "add" or str(total.ty.dtype) != "float32":
        return None
    terms = [values.value(each) for each in total.args]
    quantized = [
        values.scaled(each) if operator_of(each) == "dequantize" else None for each in terms
    ]
    with np.errstate(over="ignore", under="ignore"):
        scales = [each.scale / out.scale for each in quantized if each]
    if len(scales) < 2 or not all(np.finfo(np.float32).tiny <= each < np.inf for each in scales):
        return None
    return _Sum(terms, scales, has_relu and out.zero > BOUNDS[out.dtype][0])
