"""Moves reshapes of dequantized values to their integers.

PyTorch flattens the operand of a product, so that a reshape would hide its integers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmtune.passes.bindings import is_constant, operator_of
from tvmtune.passes.constants import constant_value

if TYPE_CHECKING:
    import tvm


def reshape_integers(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` with dequantize after reshape where it was before and has one scale."""
    from tvm import relax

    @relax.expr_functor.mutator
    class Move(relax.PyExprMutator):
        def visit_call_(self, call: Any) -> Any:
            call = self.visit_expr_post_order(call)
            if operator_of(call) != "reshape":
                return call
            source = (
                self.lookup_binding(call.args[0]) if isinstance(call.args[0], relax.Var) else None
            )
            if source is None or operator_of(source) != "dequantize" or is_constant(source.args[0]):
                return call
            integers, scale, zero = source.args
            parameters = [constant_value(each) for each in (scale, zero)]
            if any(each is None or each.size != 1 for each in parameters):
                return call
            moved = self.builder_.emit(relax.Call(call.op, [integers, *call.args[1:]], call.attrs))
            dtype = str(call.ty.dtype)
            return relax.op.dequantize(moved, scale, zero, axis=0, out_dtype=dtype)

    moving = Move(mod)
    moving.builder_.update_func(mod.get_global_var("main"), moving.visit_expr(mod["main"]))
    return moving.builder_.get()
