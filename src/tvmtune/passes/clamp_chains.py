"""Where fusion must begin a kernel: at chains of clamps that are too long or computed many times."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tvmtune.passes.bindings import bindings, operator_of, reads, rebind
from tvmtune.passes.fusable_calls import INJECTIVE, OUT_ELEMENTWISE_FUSABLE, pattern_of
from tvmtune.static_shapes import static_shape
from tvmtune.types import product

if TYPE_CHECKING:
    import tvm

_CLAMPS = 6
"""How many minima and maxima of minima and maxima, such as quantizations make, a kernel may compute:
TVM's simplifier takes four times as long for each more, 6 s for 10 and minutes for 13."""
_MANY = 8
"""Values that a broadcast makes, at least, of each that it should rather read from memory."""


def cut(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` with chains of clamps cut that are too long or would be computed many times.

    The kernels' patterns must be those of :func:`.fusable_calls.correct_patterns`. Fusion begins a
    kernel at every call that would exceed :data:`_CLAMPS`, and at every one that broadcasts a value
    that was rounded, such as a statistic of a quantized normalization, to :data:`_MANY` times as many.
    """
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
        given = [each for each in operands.fields if each not in stored]
        depths[result] = int(own)
        if pattern_of(kernel) > INJECTIVE:
            continue
        depth = own + max((depths.get(operand, 0) for operand in given), default=0)
        moved = [each for each in given if each in movable]
        if depth > _CLAMPS or any(0 < _size(e) * _MANY <= _size(result) for e in moved):
            made[result] = _beginning(kernel, value, str(variable.name_hint))
            continue
        depths[result] = depth
        if rounds or moved:
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
        if pattern_of(mod[variable]) > INJECTIVE:
            found.update(each for each in operands.fields if count.get(each, 0) > 1)
    return found


def _size(value: Any) -> int:
    shape = static_shape(value)
    return 0 if shape is None else product(shape)


def _beginning(kernel: Any, call: Any, name: str) -> Callable[[Any], Any]:
    """Makes a call that fusion puts nothing before."""
    from tvm import relax

    def make(mutator: Any) -> Any:
        copy = kernel.with_attr("op_pattern", OUT_ELEMENTWISE_FUSABLE)
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
