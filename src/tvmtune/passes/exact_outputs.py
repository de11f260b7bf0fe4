"""Which outputs of a network have exactly one right value."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from tvmtune.passes.kernel_arguments import kernel_arguments

if TYPE_CHECKING:
    import tvm

_CHOOSE = frozenset(
    f"relax.{name}" for name in ("argmax", "argmin", "argsort", "topk", "bucketize", "nonzero")
)
"""Operators that return places in a tensor: the next place is as wrong as any other."""
_PLACES = frozenset(f"relax.{name}" for name in ("argmax", "argmin", "argsort"))
"""Those of them that return nothing else."""


class Kind(enum.Enum):
    """What an output holds."""

    ROUNDED = "floats, or integers that are rounded from floats or computed from such"
    CHOSEN = "integers or booleans that floats decide, or what was rounded from them"
    EXACT = "integers or booleans that depend on no floats"


def kinds_of_outputs(mod: tvm.IRModule) -> list[Kind]:
    """What each output of ``main`` holds, before any pass.

    What floats decide (the largest, which are positive) is not rounded: with other floats it may be
    quite another value, but none that is near.
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
        decides = name in _CHOOSE or _dtypes(value) == ["bool"]
        if not decides and any(map(_is_float, value.args)):
            return None
        return list(value.args)

    def kind(value: Any) -> Kind:
        waiting, seen, chosen = [(value, False)], set(), False
        while waiting:
            each, decides = waiting.pop()
            each = bound(each)
            if (each, decides) in seen:
                continue
            seen.add((each, decides))
            if _is_float(each):
                chosen = True
                continue
            found = sources(each)
            if found is None and not decides:
                return Kind.ROUNDED
            chosen = chosen or found is None
            operator = str(getattr(getattr(each, "op", None), "name", ""))
            decides = decides or operator in _PLACES or _dtypes(each) == ["bool"]
            waiting += [(source, decides) for source in found or ()]
        return Kind.CHOSEN if chosen else Kind.EXACT

    result = bound(getattr(main.body, "body", main.body))
    if isinstance(result, relax.Tuple):
        return [Kind.ROUNDED if _is_float(each) else kind(each) for each in result.fields]
    whole = kind(result)
    return [Kind.ROUNDED if "float" in dtype else whole for dtype in _dtypes(result)]


def _dtypes(value: Any) -> list[str]:
    """Of a tensor, or of the tensors of a tuple."""
    kind = value.ty
    return [str(getattr(each, "dtype", "")) for each in getattr(kind, "fields", [kind])]


def _is_float(value: Any) -> bool:
    """Whether it is a tensor of floats, or a tuple of only such."""
    dtypes = _dtypes(value)
    return bool(dtypes) and all("float" in dtype for dtype in dtypes)
