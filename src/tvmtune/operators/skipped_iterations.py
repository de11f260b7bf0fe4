"""Iterations of which only the first and the last statement run unless a value says otherwise.

The first statements of an iteration compute the value, and the last one stores the results, for which
it needs no other where the value is not positive.
"""

from __future__ import annotations

from typing import Any

ONLY_IF = "tvmtune.only_if"
"""Annotation of such a loop: the name of the buffer with the value."""


def with_conditions(func: Any, mod: Any, context: Any) -> Any:
    """The PrimFunc, which has flat buffers, with a condition around what such loops may skip."""
    from tvm import tirx
    from tvm_ffi import structural_mutate

    def visit(loop: Any, mutator: Any) -> Any:
        if ONLY_IF not in loop.annotations:
            return mutator.default_mutate(loop)
        statements = [*loop.body.seq]
        allocated = [each for each in statements if isinstance(each, tirx.AllocBuffer)]
        computed = [each for each in statements if not isinstance(each, tirx.AllocBuffer)]
        name = str(loop.annotations[ONLY_IF])
        (buffer,) = (each.buffer for each in allocated if str(each.buffer.name) == name)
        count = max(n for n, each in enumerate(computed) if _stores(each, buffer)) + 1
        first, skipped, last = computed[:count], computed[count:-1], computed[-1]
        condition = tirx.BufferLoad(buffer, [0]) > 0
        body = [*allocated, *first, tirx.IfThenElse(condition, tirx.SeqStmt(skipped), None), last]
        rest = {key: value for key, value in loop.annotations.items() if str(key) != ONLY_IF}
        return tirx.For(
            *(loop.loop_var, loop.min, loop.extent, loop.kind, tirx.SeqStmt(body)),
            annotations=rest,
        )

    return func.with_body(structural_mutate(func.body, (tirx.For, visit)))


def _stores(statement: Any, buffer: Any) -> bool:
    from tvm import tirx
    from tvm_ffi import structural_walk

    found: list[bool] = []
    structural_walk(
        statement,
        (tirx.BufferStore, lambda store: found.append(store.buffer.same_as(buffer))),
    )
    return any(found)
