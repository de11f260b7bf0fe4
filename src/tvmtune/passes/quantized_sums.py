"""Folds the scales of quantized sums, such as those of residual connections.

With x = sx (qx - zx), y = sy (qy - zy) and the result's scale s, (x + y) / s is
(sx / s) (qx - zx) + (sy / s) (qy - zy): no element is divided, and where zero is the least integer, the
result's limits are those of a ReLU. ONNX Runtime's QLinearAdd computes the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.passes.bindings import bindings, emit_as, operator_of, reads
from tvmtune.passes.constants import constant_value
from tvmtune.passes.quantized_kernels import BOUNDS

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
    """``mod`` with such sums of bytes, each of one scale, quantized with a scale of 1; itself if there
    are none."""
    from tvm import relax

    values, readers = {b.var: b.value for b in bindings(mod)}, reads(mod)

    def only(variable: Any) -> Any:
        return values.get(variable) if readers.get(variable) == 1 else None

    sums = {
        variable: found
        for variable, call in values.items()
        if operator_of(call) == "quantize" and (found := _sum(call, values, only))
    }
    if not sums:
        return mod

    @relax.expr_functor.mutator
    class Fold(relax.PyExprMutator):
        def visit_var_binding_(self, binding: Any) -> None:
            found = sums.get(binding.var)
            if found is None:
                super().visit_var_binding_(binding)
                return
            terms = [
                self.builder_.emit(
                    relax.op.dequantize(
                        self.visit_expr(term.args[0]), relax.const(scale), term.args[2], axis=0
                    )
                )
                for term, scale in zip(found.terms, found.scales, strict=True)
            ]
            total = self.builder_.emit(relax.op.add(*terms))
            if found.has_relu:
                total = self.builder_.emit(relax.op.nn.relu(total))
            call = binding.value
            made = relax.op.quantize(
                total,
                relax.const(np.float32(1)),
                call.args[2],
                axis=0,
                out_dtype=str(call.ty.dtype),
            )
            emit_as(self, binding, made)

    folding = Fold(mod)
    folding.builder_.update_func(mod.get_global_var("main"), folding.visit_expr(mod["main"]))
    return relax.transform.DeadCodeElimination()(folding.builder_.get())


def _sum(call: Any, values: dict[Any, Any], only: Any) -> _Sum | None:
    """What this quantize call rounds, if it is a sum of two dequantized values that nothing else reads;
    ``only`` gives the expression of a variable that is read once."""
    scale, zero = _scale(call), constant_value(call.args[2])
    dtype = str(call.ty.dtype)
    if scale is None or zero is None or zero.size != 1 or dtype not in BOUNDS:
        return None
    total = only(call.args[0])
    has_relu = operator_of(total) == "nn.relu"
    if has_relu:
        total = only(total.args[0])
    if operator_of(total) != "add":
        return None
    terms: list[Any] = [values.get(each) for each in total.args]
    scales = []
    for term in terms:
        own = _scale(term) if operator_of(term) == "dequantize" else None
        if own is None or str(term.args[0].ty.dtype) not in BOUNDS:
            return None
        with np.errstate(over="ignore", under="ignore"):
            scales.append(own / scale)
    if not all(np.finfo(np.float32).tiny <= each < np.inf for each in scales):
        return None
    return _Sum(terms, scales, has_relu and int(zero.item()) > BOUNDS[dtype][0])


def _scale(call: Any) -> np.float32 | None:
    """Of a quantize or dequantize call, if it has only one."""
    scale = constant_value(call.args[1])
    return np.float32(scale.item()) if scale is not None and scale.size == 1 else None
