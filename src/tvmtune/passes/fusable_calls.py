"""Which kernels TVM's fusion takes for what.

Calls of TE programs get epilogues as TVM's own convolutions and products do; what only looks like an
epilogue gets none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tvm

_BROADCAST, _INJECTIVE, _OUT_ELEMENTWISE_FUSABLE, _OPAQUE = 1, 2, 4, 8
"""``OpPatternKind`` of TVM's fusion."""


def call_fusable(
    builder: Any, program: Callable[..., Any], *arguments: Any, name: str, fuses: bool = True
) -> Any:
    """A Relax call of ``program``, whose last block must be element-wise in the output. Without
    ``fuses`` it stays a kernel of its own."""
    return builder.call_te(
        program,
        *arguments,
        primfunc_name_hint=name,
        primfunc_attrs={"op_pattern": _OUT_ELEMENTWISE_FUSABLE if fuses else _OPAQUE},
    )


def correct_patterns(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` after ``AnnotateTIROpPattern``, without kernels that are called element-wise although
    their results have other extents.

    So it calls padding at the end of an axis. Fused into a convolution, it would be computed where that
    has a result, and what is added would stay uninitialized.
    """
    from tvm import tirx

    for variable, function in mod.functions_items():
        if not isinstance(function, tirx.PrimFunc):
            continue
        pattern = function.attrs.get("op_pattern")
        if pattern is not None and int(pattern) <= _BROADCAST and _changes_extents(function):
            mod.update_func(variable, function.with_attr("op_pattern", _INJECTIVE))
    return mod


def _changes_extents(function: Any) -> bool:
    *read, written = [list(p.shape) for p in function.params if hasattr(p, "shape")]
    return any(
        len(shape) == len(written)
        and any(_is_other(n, m) for n, m in zip(shape, written, strict=True))
        for shape in read
    )


def _is_other(extent: Any, written: Any) -> bool:
    """Whether both are numbers, and one is not broadcast to the other."""
    from tvm import tirx

    numbers = [int(n) for n in (extent, written) if isinstance(n, int | tirx.IntImm)]
    return len(numbers) == 2 and numbers[0] not in (1, numbers[1])
