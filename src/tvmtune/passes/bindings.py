"""The bindings of a Relax program, and what their expressions are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tvm


def bindings(mod: tvm.IRModule) -> list[Any]:
    """Those of ``main``, in program order."""
    return [binding for block in mod["main"].body.blocks for binding in block.bindings]


def operator_of(expr: Any) -> str:
    """The operator that an expression calls, without ``relax.``, e.g. ``nn.conv2d``; else empty."""
    return str(getattr(getattr(expr, "op", None), "name", "")).removeprefix("relax.")


def is_constant(expr: Any) -> bool:
    """Whether an expression is a constant."""
    from tvm.ir import GenericConst

    return isinstance(expr, GenericConst)


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
