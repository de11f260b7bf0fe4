"""Calls of fused kernels in a Relax program, in program order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvmtune.passes.bindings import calls_by_operator

if TYPE_CHECKING:
    import tvm


@dataclass(frozen=True)
class CallSite:
    """One ``call_tir`` of ``main``."""

    index: int
    name: str
    func: Any
    """The PrimFunc that is called."""


def call_sites(mod: tvm.IRModule) -> list[CallSite]:
    """Every ``call_tir`` in ``main``, numbered from 0 in program order."""
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
            sites.append(CallSite(index, str(call.args[0].name_hint), func))
    return sites


def without_kernel(mod: tvm.IRModule) -> list[str]:
    """Relax operators in the module that were not legalized to kernels, sorted."""
    return sorted(name for name in calls_by_operator(mod) if not name.startswith("relax.call_"))


def as_workload(func: Any) -> tvm.IRModule:
    """A module with the PrimFunc as ``main``, so that its name does not affect its key."""
    import tvm

    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
