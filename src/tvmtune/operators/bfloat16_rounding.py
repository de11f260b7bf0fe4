"""Round float32 to bfloat16 by one instruction, and leave exact values unrounded.

TVM stores bfloat16 as integers and rounds with integer arithmetic: five instructions per vector.
CPUs with products of bfloat16 have an instruction for it, too, which also rounds to nearest, ties to
even. It differs for denormal numbers, which AVX512-BF16 takes for zero, and keeps NaN. Single values
are left to LLVM, which makes vectors of their integer arithmetic.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from tvmtune import dot_instructions
from tvmtune.operators import vector_math

_PREFIX = "tvmtune_bfloat16_x"
_SYMBOL = re.compile(_PREFIX + r"(\d+)")


def insert(func: Any) -> Any:
    """A lowered PrimFunc that rounds so where its target can."""
    from tvm import tirx
    from tvm_ffi import structural_mutate

    def visit(cast: Any, mutator: Any) -> Any:
        value = _rounded(cast)
        if value is None:
            return mutator.default_mutate(cast)
        if _is_bfloat16(value):
            wide = cast.value.a.a  # the value as an integer
            return tirx.Cast(cast.ty.dtype, mutator.mutate(wide) >> cast.value.b)
        lanes = str(cast.ty.dtype).partition("x")[2]
        if not lanes:
            return mutator.default_mutate(cast)
        value = vector_math.coarse(mutator.mutate(value))
        return tirx.call_pure_extern(str(cast.ty.dtype), f"{_PREFIX}{lanes}", value)

    target = func.attrs.get("target")
    if target is None or not dot_instructions.for_bfloat16(dict(target.export())):
        return func
    return func.with_body(structural_mutate(func.body, (tirx.Cast, visit)))


def _rounded(cast: Any) -> Any | None:
    """The float32 value that an expression rounds as TVM does; None for any other expression."""
    from tvm import ir, tirx

    shift = cast.value
    if not str(cast.ty.dtype).startswith("uint16") or not isinstance(shift, tirx.RShift):
        return None
    added, bits = shift.a, shift.b
    if not isinstance(added, tirx.Add) or not isinstance(added.b, tirx.Add):
        return None
    wide, (even, half) = added.a, (added.b.a, added.b.b)
    if not isinstance(wide, ir.Call) or not wide.op.name.endswith("reinterpret"):
        return None
    value = wide.args[0]
    is_rounding = isinstance(even, tirx.BitwiseAnd) and _number(half) == 0x7FFF
    is_float32 = str(value.ty.dtype).startswith("float32")
    return value if is_rounding and is_float32 and _number(bits) == 16 else None


def _is_bfloat16(value: Any) -> bool:
    """Whether a float32 is one that bfloat16 has, too: what is read as such, and the greater or smaller
    of two, as in pooling."""
    from tvm import ir, tirx

    if isinstance(value, tirx.Max | tirx.Min):
        return _is_bfloat16(value.a) and _is_bfloat16(value.b)
    if not isinstance(value, ir.Call) or not value.op.name.endswith("reinterpret"):
        return False
    wide = value.args[0]
    return (
        isinstance(wide, tirx.LShift)
        and _number(wide.b) == 16
        and isinstance(wide.a, tirx.Cast)
        and str(wide.a.value.ty.dtype).startswith("uint16")
    )


def _number(value: Any) -> int | None:
    from tvm import tirx

    scalar = value.value if isinstance(value, tirx.Broadcast) else value
    return int(scalar) if isinstance(scalar, tirx.IntImm) else None


def definitions(called: Collection[str]) -> list[str]:
    """In LLVM IR, of the functions here among those whose names are ``called``."""
    found = sorted({int(match[1]) for name in called if (match := _SYMBOL.fullmatch(name))})
    return [_definition(lanes) for lanes in found]


def _definition(lanes: int) -> str:
    wide, half, bits = (f"<{lanes} x {kind}>" for kind in ("float", "bfloat", "i16"))
    return f"""
define {bits} @{_PREFIX}{lanes}({wide} %x) alwaysinline {{
  %rounded = fptrunc {wide} %x to {half}
  %bits = bitcast {half} %rounded to {bits}
  ret {bits} %bits
}}
"""
