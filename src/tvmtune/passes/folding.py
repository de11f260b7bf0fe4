"""Constant folding: run kernels whose arguments are all constants at compile time."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tvmtune.arrays import nbytes
from tvmtune.machine import parallel

if TYPE_CHECKING:
    import tvm


def fold(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace such calls in ``main`` by their results.

    TVM's FoldConstant does the same, but builds kernels one by one, which takes twice as long. Kernels
    that are not for CPUs are left to it. Calls with the same arguments share a result: an unrolled
    recurrent layer multiplies with the same weights at each step, and they should stay in the cache.
    """
    import tvm
    from tvm import tirx
    from tvm.relax.expr_functor import PyExprMutator, mutator

    main = mod["main"]
    calls = [
        binding.value
        for block in getattr(main.body, "blocks", ())
        for binding in block.bindings
        if _is_constant(binding.value)
    ]
    kernels = {call.args[0]: mod[call.args[0]] for call in calls}
    if not all(isinstance(kernel, tirx.PrimFunc) for kernel in kernels.values()) or not kernels:
        return mod
    named = [(v, f.with_attr("global_symbol", str(v.name_hint))) for v, f in kernels.items()]

    # They run once: LLVM's optimizations take longer than they save, even for 500 MB of weights.
    target = tvm.target.Target({"kind": "llvm", "opt-level": 0})

    def compiled(group: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
        part = tvm.tirx.build(tvm.IRModule(dict(group)), target)
        return {name: part[name] for name in (str(v.name_hint) for v, _ in group)}

    try:
        parts = parallel.each(
            compiled, parallel.groups(named, parallel.cores()), "packing weights", size=len
        )
    except Exception:  # some kernel is scheduled for another device
        return mod
    library = {name: kernel for part in parts for name, kernel in part.items()}
    results: dict[tuple[Any, ...], Any] = {}

    @mutator
    class Folded(PyExprMutator):
        def visit_call_(self, call: Any) -> Any:
            if not _is_constant(call):
                return super().visit_call_(call)
            key = (str(call.args[0].name_hint), *(each.value.data_ptr() for each in call.args[1]))
            if key not in results:
                results[key] = _result(call, library)
            return results[key]

    folded = Folded(mod)
    mod.update_func(mod.get_global_var("main"), folded.visit_expr(main))
    # TVM keeps mutator classes forever, with everything their closures hold.
    results.clear()
    library.clear()
    return mod


def _is_constant(value: Any) -> bool:
    from tvm.ir import Call, GenericConst, Op

    return (
        isinstance(value, Call)
        and value.op == Op.get("relax.call_tir")
        and len(value.args[1]) > 0
        and all(isinstance(each, GenericConst) for each in value.args[1])
    )


def _result(call: Any, library: Mapping[str, Any]) -> Any:
    """The outputs of a kernel in ``library``: a constant, or a tuple of constants."""
    import tvm
    from tvm import relax

    types = [*call.ty.fields] if isinstance(call.ty, relax.TupleType) else [call.ty]
    written = [tvm.runtime.empty([int(d) for d in t.shape], str(t.dtype)) for t in types]
    for each in written:  # some leave out padding, and libraries are to be reproducible
        ctypes.memset(each.data_ptr(), 0, nbytes(each))
    library[str(call.args[0].name_hint)](*(each.value for each in call.args[1]), *written)
    made = [relax.const(each) for each in written]
    return relax.Tuple(made) if isinstance(call.ty, relax.TupleType) else made[0]
