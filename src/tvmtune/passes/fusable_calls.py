"""Which kernels TVM's fusion takes for what.

Calls of TE programs get epilogues as TVM's own convolutions and products do; what only looks like an
epilogue gets none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tvmtune.passes.bindings import bindings, operator_of
from tvmtune.passes.blocks import blocks

if TYPE_CHECKING:
    import tvm

_ELEMENTWISE, _BROADCAST, INJECTIVE, OUT_ELEMENTWISE_FUSABLE, _OPAQUE = 0, 1, 2, 4, 8
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
        primfunc_attrs={"op_pattern": OUT_ELEMENTWISE_FUSABLE if fuses else _OPAQUE},
    )


def correct_patterns(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` after ``AnnotateTIROpPattern``, with two kinds of kernels marked as what they are.

    TVM marks kernels that change extents, such as padding at the end of an axis, as element-wise. Fused
    into a convolution, they would be computed where that has a result, and what is added would stay
    uninitialized. They become injective.

    TVM marks kernels that read an operand several times per result, such as bilinear interpolation, as
    injective. Fused with what comes before them, that would be computed anew for each read. They become
    out-element-wise-fusable, if the kernel before them could be fused into them.
    """
    from tvm import tirx

    fusable = _fusable_operands(mod)
    for variable, function in list(mod.functions_items()):
        if not isinstance(function, tirx.PrimFunc):
            continue
        pattern = pattern_of(function)
        if pattern in (_ELEMENTWISE, _BROADCAST) and _changes_extents(function, pattern):
            pattern = INJECTIVE
        if pattern == INJECTIVE and variable in fusable and _reads_several_elements(function):
            pattern = OUT_ELEMENTWISE_FUSABLE
        if pattern != pattern_of(function):
            mod.update_func(variable, function.with_attr("op_pattern", pattern))
    return mod


def pattern_of(kernel: Any) -> int:
    """TVM's ``OpPatternKind`` of a kernel; opaque if it has none."""
    return int(kernel.attrs.get("op_pattern", _OPAQUE))


def _fusable_operands(mod: tvm.IRModule) -> set[Any]:
    """The kernels of which an operand is the result of a kernel that fusion may put before them."""
    patterns: dict[Any, int] = {}
    found = set()
    for binding in bindings(mod):
        if operator_of(binding.value) != "call_tir":
            continue
        kernel, operands = binding.value.args[:2]
        patterns[binding.var] = pattern_of(mod[kernel])
        if any(patterns.get(operand, _OPAQUE) <= INJECTIVE for operand in operands.fields):
            found.add(kernel)
    return found


def _reads_several_elements(function: Any) -> bool:
    """Whether a block of a kernel reads an operand at several places for each result."""
    from tvm import ir
    from tvm_ffi import structural_equal, structural_walk

    several = False
    for block in blocks(function):
        places: dict[Any, Any] = {}

        def visit(load: Any, places: dict[Any, Any] = places) -> None:
            nonlocal several
            first = places.setdefault(load.source, load.indices)
            several = several or not structural_equal(first, load.indices)

        structural_walk(block.body, (ir.TensorLoad, visit))
    return several


def _changes_extents(function: Any, pattern: int) -> bool:
    """Whether an element-wise kernel reads extents that are neither its result's nor 1, or, if it is
    not called a broadcast either, no tensor with those of its result.

    Extents that are not known are taken for equal.
    """
    from tvm import tirx

    *read, written = [
        [int(n) if isinstance(n, int | tirx.IntImm) else None for n in p.shape]
        for p in function.params
        if hasattr(p, "shape")
    ]
    others = [
        [n for n, m in zip(shape, written, strict=True) if None not in (n, m) and n != m]
        for shape in read
        if len(shape) == len(written)
    ]
    if any(n != 1 for each in others for n in each):
        return True
    return pattern == _ELEMENTWISE and bool(others) and all(others)
