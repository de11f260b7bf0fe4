"""Which outputs of a network have exactly one right value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmtune.passes.kernel_arguments import kernel_arguments

if TYPE_CHECKING:
    import tvm

_CHOOSE = frozenset(
    f"relax.{name}" for name in ("argmax", "argmin", "argsort", "topk", "bucketize", "nonzero")
)
"""Operators that return places in a tensor: the next place is as wrong as any other."""
_PLACES = frozenset(f"relax.{name}" for name in ("argmax", "argmin", "argsort"))
"""Those of them that return nothing else, whatever the tensor was rounded from."""


def exact_outputs(mod: tvm.IRModule) -> list[bool]:
    """For each output of ``main``, before any pass, whether it is of integers or booleans that are
    neither rounded from floats nor computed from such.

    What floats decide (the largest, which are positive) is exact: with other floats it may be quite
    another value, but none that is near.
    """
    import tvm
    from tvm import relax

    main = mod["main"]
    values = {
        binding.var: binding.value
        for block in getattr(main.body, "blocks", ())
        for binding in block.bindings
        if isinstance(binding, relax.VarBinding)
    }

    def bound(value: Any) -> Any:
        while value in values:
            value = values[value]
        return value

    def sources(value: Any) -> list[Any] | None:
        """What an integer value is computed from; None if it is rounded from floats."""
        if isinstance(value, relax.Tuple):
            return list(value.fields)
        if isinstance(value, relax.TupleGetItem):
            return [value.tuple_value]
        if isinstance(value, (relax.If, relax.SeqExpr)):
            return None
        if not isinstance(value, relax.Call):  # an input or a constant
            return []
        name = str(getattr(value.op, "name", ""))
        if name == "relax.call_tir":
            kernel = mod[value.args[0]].with_attr("global_symbol", "main")
            written = [a for a in kernel_arguments(tvm.IRModule({"main": kernel})) if a.written]
            exact = all(a.exact for a in written if "float" not in a.dtype)
            return list(value.args[1].fields) if exact else None
        if name in _PLACES:
            return []
        decides = name in _CHOOSE or _dtypes(value) == ["bool"]
        if not decides and any(map(_is_float, value.args)):
            return None
        return list(value.args)

    def is_exact(value: Any) -> bool:
        waiting, seen = [value], set()
        while waiting:
            each = bound(waiting.pop())
            if each in seen or _is_float(each):
                continue
            seen.add(each)
            found = sources(each)
            if found is None:
                return False
            waiting += found
        return True

    result = bound(getattr(main.body, "body", main.body))
    if isinstance(result, relax.Tuple):
        return [not _is_float(field) and is_exact(field) for field in result.fields]
    exact = is_exact(result)
    return [exact and "float" not in dtype for dtype in _dtypes(result)]


def _dtypes(value: Any) -> list[str]:
    """Of a tensor, or of the tensors of a tuple."""
    kind = value.ty
    return [str(getattr(each, "dtype", "")) for each in getattr(kind, "fields", [kind])]


def _is_float(value: Any) -> bool:
    """Whether it is a tensor of floats, or a tuple of only such."""
    dtypes = _dtypes(value)
    return bool(dtypes) and all("float" in dtype for dtype in dtypes)
