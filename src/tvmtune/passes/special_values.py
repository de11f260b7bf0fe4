"""Tests for NaN and infinities in bfloat16, which TVM has for other dtypes only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tvmtune.passes.bindings import bindings, operator_of, rebind

if TYPE_CHECKING:
    import tvm

_TESTS = ("isfinite", "isinf", "isnan")


def in_float32(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` with such tests of the values in float32; itself if there are none."""
    made: dict[Any, Callable[[Any], Any]] = {
        binding.var: partial(_test, binding.value)
        for binding in bindings(mod)
        if operator_of(binding.value) in _TESTS
        and str(binding.value.args[0].ty.dtype) == "bfloat16"
    }
    return rebind(mod, made)


def _test(call: Any, mutator: Any) -> Any:
    from tvm import relax

    wide = relax.op.astype(mutator.visit_expr(call.args[0]), "float32")
    return getattr(relax.op, operator_of(call))(mutator.builder_.emit(wide))
