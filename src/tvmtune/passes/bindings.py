"""The bindings of a Relax program, and what their expressions are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tvm


def bindings(mod: tvm.IRModule) -> list[Any]:
    """Those of ``main``, in program order."""
    return [binding for block in mod["main"].body.blocks for binding in block.bindings]


def operator_of(expr: Any) -> str:
    """The operator that an expression calls, without ``relax.``, e.g. ``nn.conv2d``; else empty."""
    return str(getattr(getattr(expr, "op", None), "name", "")).removeprefix("relax.")


def calls_by_operator(mod: tvm.IRModule) -> dict[str, list[Any]]:
    """All calls of operators in the program, by the operator's name, e.g. ``relax.nn.conv2d``."""
    from tvm import ir, relax

    found: dict[str, list[Any]] = {}

    def visit(node: Any) -> None:
        if isinstance(node, relax.Call) and isinstance(node.op, ir.Op):
            found.setdefault(str(node.op.name), []).append(node)

    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return found


def is_constant(expr: Any) -> bool:
    """Whether an expression is a constant."""
    from tvm.ir import GenericConst

    return isinstance(expr, GenericConst)


def is_float32(call: Any) -> bool:
    """Whether the operands and the result of a call are of float32."""
    return all(str(each.ty.dtype) == "float32" for each in (*call.args, call))


def reads(mod: tvm.IRModule) -> dict[Any, int]:
    """How many bindings of ``main`` read each variable; its result counts as one more."""
    from tvm.relax.analysis import free_vars

    count: dict[Any, int] = {}
    for value in (*(b.value for b in bindings(mod)), mod["main"].body.body):
        for variable in free_vars(value):
            count[variable] = count.get(variable, 0) + 1
    return count


def emit_as(mutator: Any, binding: Any, made: Any) -> None:
    """Bind ``made`` in place of what a mutator's ``binding`` had."""
    from tvm import relax

    # What other blocks read is no DataflowVar.
    is_inner = isinstance(binding.var, relax.DataflowVar)
    emit = mutator.builder_.emit if is_inner else mutator.builder_.emit_output
    mutator.set_var_remap(binding.var, emit(made, str(binding.var.name)))


def rebind(mod: tvm.IRModule, made: dict[Any, Callable[[Any], Any]]) -> tvm.IRModule:
    """``mod`` with other expressions bound to some variables of ``main``, without what nothing reads
    then; itself if there are none.

    Each function makes one, with the mutator that visits what it reads. ``made`` is empty afterwards.
    """
    from tvm import relax

    if not made:
        return mod

    @relax.expr_functor.mutator
    class Rebind(relax.PyExprMutator):
        def visit_var_binding_(self, binding: Any) -> None:
            make = made.get(binding.var)
            if make is None:
                super().visit_var_binding_(binding)
            else:
                emit_as(self, binding, make(self))

    mutator = Rebind(mod)
    mutator.builder_.update_func(mod.get_global_var("main"), mutator.visit_expr(mod["main"]))
    made.clear()  # TVM keeps mutator classes forever, with everything their closures hold
    return relax.transform.DeadCodeElimination()(mutator.builder_.get())
