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
