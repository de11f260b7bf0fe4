"""Tails of vectorized loops: axes whose extent is not a multiple of the vector's lanes.

A schedule pads such an axis to whole vectors, with a predicate that says which elements exist. TVM
stores every vector of a loop with a predicate on the lane element by element. Here whole vectors are
stored as such, and the tail in vectors whose lanes are powers of two.

So are loops over another number of lanes, such as 24: LLVM computes with 32, and takes lanes that are
read from registers out one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tvmtune.operators import linear_indices

_VECTOR = 64
"""Bytes of the vectors that a loop is split into, at most."""


def has_tails(func: Any) -> bool:
    """Whether a PrimFunc, which has blocks, has vectorized loops with a predicate on the lane, or over
    lanes that are no power of two."""
    from tvm import s_tir, tirx
    from tvm_ffi import structural_walk

    found: list[bool] = []

    def visit(loop: Any) -> None:
        if loop.kind == tirx.ForKind.VECTORIZED and isinstance(loop.body, s_tir.SBlockRealize):
            checked = linear_indices.uses(loop.body.predicate, {loop.loop_var})
            found.append(checked or _is_uneven(loop))

    structural_walk(func.body, (tirx.For, visit))
    return any(found)


def with_parts(func: Any, mod: Any, context: Any) -> Any:
    """The PrimFunc, which has flat buffers, with whole vectors and tails in place of such loops."""
    from tvm import tirx
    from tvm_ffi import structural_mutate

    read = _read_unevenly(func)

    def visit(loop: Any, mutator: Any) -> Any:
        if loop.kind == tirx.ForKind.VECTORIZED and isinstance(loop.body, tirx.BufferStore):
            # Also what stores whole vectors of which another loop reads parts.
            uneven = _is_uneven(loop) or any(each.same_as(loop.body.buffer) for each in read)
            return _parts(loop, int(loop.extent)) if uneven else loop
        checks = _checks(loop)
        if checks is None:
            return mutator.default_mutate(loop)
        others, check = checks
        left = _elements_left(loop, check)
        if left is None:
            return loop
        lanes = int(loop.extent)
        last = None
        if left:
            last = _parts(loop, left)
            last = tirx.IfThenElse(_at(check, loop, 0), last, None)
        stored = tirx.IfThenElse(_at(check, loop, lanes - 1), _part(loop, 0, lanes), last)
        for other in others:
            stored = tirx.IfThenElse(other, stored, None)
        return stored

    return func.with_body(structural_mutate(func.body, (tirx.For, visit)))


def _is_uneven(loop: Any) -> bool:
    lanes = int(loop.extent)
    return lanes & (lanes - 1) != 0


def _read_unevenly(func: Any) -> list[Any]:
    """The buffers that are read in loops over lanes that are no power of two."""
    from tvm import ir, tirx
    from tvm_ffi import structural_walk

    found: list[Any] = []

    def visit(loop: Any) -> None:
        if loop.kind == tirx.ForKind.VECTORIZED and _is_uneven(loop):
            structural_walk(loop.body, (ir.TensorLoad, lambda load: found.append(load.source)))

    structural_walk(func.body, (tirx.For, visit))
    return found


def _checks(loop: Any) -> tuple[list[Any], Any] | None:
    """The predicates of a vectorized loop that stores values: those that do not depend on the lane, and
    the one that does. None if it is no such loop, or several do."""
    from tvm import tirx

    body = loop.body
    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(body, tirx.IfThenElse):
        return None
    if body.else_case is not None or not isinstance(body.then_case, tirx.BufferStore):
        return None
    checks = list(_conjunction(body.condition))
    own = [each for each in checks if linear_indices.uses(each, {loop.loop_var})]
    if len(own) != 1:
        return None
    return [each for each in checks if not each.same_as(own[0])], own[0]


def _conjunction(condition: Any) -> Iterator[Any]:
    from tvm import tirx

    if isinstance(condition, tirx.And):
        yield from _conjunction(condition.a)
        yield from _conjunction(condition.b)
    else:
        yield condition


def _elements_left(loop: Any, check: Any) -> int | None:
    """How many elements remain after the last whole vector, if ``check`` is that an element exists;
    else None."""
    from tvm import sym, tirx

    if not isinstance(check, tirx.LT):
        return None
    index = linear_indices.linear(check.a, {}, {loop.loop_var})
    limit = linear_indices.constant(check.b)
    if index is None or limit is None or index.get(loop.loop_var) != 1:
        return None
    lanes = int(loop.extent)
    first = sym.Analyzer().modular_set(_at(check.a, loop, 0))
    if first.coeff % lanes or first.base % lanes:
        return None
    return limit % lanes


def _powers_of_two(number: int, most: int) -> Iterator[tuple[int, int]]:
    """First element and size of the parts of so many elements, the largest first; ``most`` is the
    largest size, a power of two."""
    first = 0
    while first < number:
        size = min(most, 1 << ((number - first).bit_length() - 1))
        yield first, size
        first += size


def _parts(loop: Any, number: int) -> Any:
    """The first elements that a loop over lanes stores, unchecked, in vectors of powers of two."""
    from tvm import DataType, tirx

    most = _VECTOR * 8 // DataType(str(_store(loop).buffer.dtype)).bits
    parts = [_part(loop, first, size) for first, size in _powers_of_two(number, most)]
    return tirx.SeqStmt(parts) if len(parts) > 1 else parts[0]


def _store(loop: Any) -> Any:
    """The store in a loop over lanes, with or without a check around it."""
    return getattr(loop.body, "then_case", loop.body)


def _part(loop: Any, first: int, size: int) -> Any:
    """Some of the elements that a loop over lanes stores, without a check."""
    from tvm import tirx

    store, kind = _store(loop), loop.loop_var.ty
    if size == 1:
        return _at(store, loop, first)
    lane = tirx.Var(loop.loop_var.name, kind)
    body = _replaced(store, {loop.loop_var: lane + first if first else lane})
    return tirx.For(lane, tirx.const(0, kind), tirx.const(size, kind), loop.kind, body)


def _at(node: Any, loop: Any, lane: int) -> Any:
    from tvm import tirx

    return _replaced(node, {loop.loop_var: tirx.const(lane, loop.loop_var.ty)})


def _replaced(node: Any, values: Mapping[Any, Any]) -> Any:
    from tvm import tirx
    from tvm_ffi import structural_mutate

    return structural_mutate(node, (tirx.Var, lambda each, mutator: values.get(each, each)))
