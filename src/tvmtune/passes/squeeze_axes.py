"""Counts the axes of ``relax.squeeze`` from the start: on others, TVM's ConvertLayout fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tvm


def count_from_start(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` without negative axes to squeeze in ``main``."""
    from tvm import ir, relax

    squeeze = ir.Op.get("relax.squeeze")

    @relax.expr_functor.mutator
    class Counter(relax.PyExprMutator):
        def visit_call_(self, call: Any) -> Any:
            call = self.visit_expr_post_order(call)
            if call.op != squeeze or call.attrs.axis is None:
                return call
            axes = [int(axis) for axis in call.attrs.axis]
            if min(axes, default=0) >= 0:
                return call
            rank = call.args[0].ty.ndim
            return relax.op.squeeze(call.args[0], [axis % rank for axis in axes])

    counter = Counter(mod)
    counter.builder_.update_func(mod.get_global_var("main"), counter.visit_expr(mod["main"]))
    return counter.builder_.get()
