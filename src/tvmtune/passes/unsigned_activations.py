"""Stores signed activations of quantized networks as unsigned ones, with the zero point moved.

Dot-product instructions multiply unsigned by signed bytes: a kernel would copy signed data to add 128.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmtune.passes.bindings import bindings, emit_as, is_constant, operator_of
from tvmtune.passes.constants import values
from tvmtune.passes.quantized_kernels import OFFSET

if TYPE_CHECKING:
    import tvm


def shift(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` with uint8 in place of int8 between quantize and dequantize, unless others read it."""
    from tvm import relax

    shifted = _shiftable(mod)
    if not shifted:
        return mod

    @relax.expr_functor.mutator
    class Shift(relax.PyExprMutator):
        def visit_call_(self, call: Any) -> Any:
            is_read = operator_of(call) == "dequantize" and call.args[0] in shifted
            call = self.visit_expr_post_order(call)
            if is_read:
                return relax.op.dequantize(
                    call.args[0], *_moved(call), out_dtype=str(call.ty.dtype)
                )
            return call

        def visit_var_binding_(self, binding: Any) -> None:
            if binding.var not in shifted:
                super().visit_var_binding_(binding)
                return
            call = self.visit_expr_post_order(binding.value)
            made = relax.op.quantize(call.args[0], *_moved(call), out_dtype="uint8")
            emit_as(self, binding, made)

    shifting = Shift(mod)
    shifting.builder_.update_func(mod.get_global_var("main"), shifting.visit_expr(mod["main"]))
    return shifting.builder_.get()


def _moved(call: Any) -> tuple[Any, Any, int]:
    """Scale, zero point and axis of a call for unsigned integers."""
    from tvm import relax

    zero = int(values(call.args[2]).item()) + OFFSET
    return call.args[1], relax.const(zero, "int32"), int(call.attrs.axis)


def _shiftable(mod: tvm.IRModule) -> set[Any]:
    """The variables of int8 that dequantize alone reads."""
    from tvm import relax

    found, kept = set(), set()
    for binding in bindings(mod):
        call = binding.value
        name = operator_of(call)
        is_known = name in ("quantize", "dequantize") and (
            is_constant(call.args[2]) and values(call.args[2]).size == 1
        )
        if name == "quantize" and is_known and str(call.ty.dtype) == "int8":
            found.add(binding.var)
        read = relax.analysis.free_vars(call)
        if not (name == "dequantize" and is_known):
            kept.update(read)
    kept.update(relax.analysis.free_vars(mod["main"].body.body))
    return found - kept
