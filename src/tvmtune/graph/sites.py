"""The calls of fused kernels in a Relax program, in program order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tvm


@dataclass(frozen=True)
class Site:
    """One ``call_tir`` of ``main``."""

    index: int
    name: str
    func: Any
    """The PrimFunc that is called."""


def call_sites(mod: tvm.IRModule) -> list[Site]:
    """Every ``call_tir`` in ``main``; its index counts from 0 in program order."""
    from tvm import relax, tirx

    calls: list[Any] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Call) and getattr(expr.op, "name", "") == "relax.call_tir":
            calls.append(expr)

    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            relax.analysis.post_order_visit(binding.value, visit)
    sites = []
    for index, call in enumerate(calls):
        func = mod[call.args[0]]
        if isinstance(func, tirx.PrimFunc):
            sites.append(Site(index, str(call.args[0].name_hint), func))
    return sites


def blocks(func: Any) -> list[Any]:
    """The blocks of a PrimFunc, outer ones before those inside them."""
    from tvm import s_tir
    from tvm_ffi import structural_walk

    found: list[Any] = []
    structural_walk(func.body, (s_tir.SBlock, found.append), order="pre")
    return found


def without_kernel(mod: tvm.IRModule) -> list[str]:
    """Relax operators in the module that are not calls of kernels, sorted."""
    import tvm
    from tvm import relax

    found: set[str] = set()

    def visit(node: Any) -> None:
        if isinstance(node, relax.Call) and isinstance(node.op, tvm.ir.Op):
            found.add(node.op.name)

    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return sorted(name for name in found if not name.startswith("relax.call_"))


def as_workload(func: Any) -> tvm.IRModule:
    """The PrimFunc alone, called ``main``, so that its name does not enter its identity."""
    import tvm

    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
