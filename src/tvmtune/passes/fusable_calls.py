"""Which kernels TVM's fusion takes for what.

Calls of TE programs get epilogues as TVM's own convolutions and products do; what only looks like an
epilogue gets none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tvmtune.passes.bindings import bindings, operator_of, reads, rebind
from tvmtune.passes.blocks import blocks
from tvmtune.static_shapes import static_shape
from tvmtune.types import product

if TYPE_CHECKING:
    import tvm

_ELEMENTWISE, _BROADCAST, _INJECTIVE, _OUT_ELEMENTWISE_FUSABLE, _OPAQUE = 0, 1, 2, 4, 8
"""``OpPatternKind`` of TVM's fusion."""

_CLAMPS = 6
"""How many minima and maxima of minima and maxima, such as quantizations make, a kernel may compute:
TVM's simplifier takes four times as long for each more, 6 s for 10 and minutes for 13."""
_MANY = 8
"""Values that a broadcast makes, at least, of each that it should rather read from memory."""


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
        pattern = _pattern(function)
        if pattern in (_ELEMENTWISE, _BROADCAST) and _changes_extents(function, pattern):
            pattern = _INJECTIVE
        if pattern == _INJECTIVE and variable in fusable and _reads_several_elements(function):
            pattern = _OUT_ELEMENTWISE_FUSABLE
        if pattern != _pattern(function):
            mod.update_func(variable, function.with_attr("op_pattern", pattern))
    return mod


def cut_chains(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` after :func:`correct_patterns`, with chains of clamps cut that are too long or would
    be computed many times: fusion begins a kernel at every call that would exceed :data:`_CLAMPS`, and
    at every one that broadcasts a value that was rounded, such as a statistic of a quantized
    normalization, to :data:`_MANY` times as many."""
    from tvm import relax

    depths: dict[Any, int] = {}
    movable: set[Any] = set()
    """The values that are rounded in kernels which fusion could move to where they are read."""
    kinds: dict[Any, tuple[bool, bool]] = {}
    made: dict[Any, Callable[[Any], Any]] = {}
    stored = _stored(mod)
    for binding in bindings(mod):
        value, result = binding.value, binding.var
        if isinstance(value, relax.TupleGetItem):
            depths[result] = depths.get(value.tuple_value, 0)
            if value.tuple_value in movable:
                movable.add(result)
        if operator_of(value) != "call_tir":
            continue
        variable, operands = value.args[:2]
        kernel = mod[variable]
        if variable not in kinds:
            kinds[variable] = _clamps(kernel), _rounds(kernel)
        own, rounds = kinds[variable]
        size, given = _size(result), [each for each in operands.fields if each not in stored]
        depths[result] = int(own)
        if _pattern(kernel) > _INJECTIVE:
            continue
        depth = own + max((depths.get(operand, 0) for operand in given), default=0)
        few = [each for each in given if 0 < _size(each) * _MANY <= size]
        if depth > _CLAMPS or not movable.isdisjoint(few):
            made[result] = _beginning(kernel, value, str(variable.name_hint))
            continue
        depths[result] = depth
        if rounds or not movable.isdisjoint(given):
            movable.add(result)
    return rebind(mod, made)


def _stored(mod: tvm.IRModule) -> set[Any]:
    """The values that end a chain, because they are in memory anyway: a convolution, a reduction or the
    like reads them, and so does another kernel, such as the sum at the end of a shortcut."""
    found: set[Any] = set()
    count = reads(mod)
    for binding in bindings(mod):
        if operator_of(binding.value) != "call_tir":
            continue
        variable, operands = binding.value.args[:2]
        if _pattern(mod[variable]) > _INJECTIVE:
            found.update(each for each in operands.fields if count.get(each, 0) > 1)
    return found


def _pattern(kernel: Any) -> int:
    return int(kernel.attrs.get("op_pattern", _OPAQUE))


def _size(value: Any) -> int:
    shape = static_shape(value)
    return 0 if shape is None else product(shape)


def _beginning(kernel: Any, call: Any, name: str) -> Callable[[Any], Any]:
    """Makes a call that fusion puts nothing before."""
    from tvm import relax

    def make(mutator: Any) -> Any:
        copy = kernel.with_attr("op_pattern", _OUT_ELEMENTWISE_FUSABLE)
        variable = mutator.builder_.add_func(copy, name)
        operands = mutator.visit_expr(call.args[1])
        return relax.Call(call.op, [variable, operands, *call.args[2:]], call.attrs, call.ty_args)

    return make


def _clamps(function: Any) -> bool:
    """Whether a kernel computes a minimum or a maximum of two values."""
    from tvm import tirx
    from tvm_ffi import structural_walk

    found: list[Any] = []
    structural_walk(function.body, [(tirx.Min, found.append), (tirx.Max, found.append)])
    return bool(found)


def _rounds(function: Any) -> bool:
    """Whether a kernel rounds floats to integers."""
    from tvm import ir
    from tvm_ffi import structural_walk

    names: list[str] = []
    structural_walk(
        function.body, (ir.Call, lambda call: names.append(str(getattr(call.op, "name", ""))))
    )
    return any(name.endswith(("nearbyint", "round")) for name in names)


def _fusable_operands(mod: tvm.IRModule) -> set[Any]:
    """The kernels of which an operand is the result of a kernel that fusion may put before them."""
    patterns: dict[Any, int] = {}
    found = set()
    for binding in bindings(mod):
        if operator_of(binding.value) != "call_tir":
            continue
        kernel, operands = binding.value.args[:2]
        patterns[binding.var] = _pattern(mod[kernel])
        if any(patterns.get(operand, _OPAQUE) <= _INJECTIVE for operand in operands.fields):
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
