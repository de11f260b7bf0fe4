"""Indices in TensorIR that are sums of variables and a constant."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

Index = Mapping[Any, int]
"""A sum: what each variable is multiplied by, and the constant, of the key None."""


def expression(index: Index, kind: Any) -> Any:
    """The sum, in TensorIR."""
    from tvm import tirx

    total = tirx.const(index.get(None, 0), kind)
    for variable, factor in variables(index).items():
        total += variable.astype(kind) * factor
    return total


def variables(index: Index) -> dict[Any, int]:
    return {variable: c for variable, c in index.items() if variable is not None and c}


def linear(
    expression: Any, values: Mapping[Any, Any], loops: Container[Any] | None = None
) -> Index | None:
    """The expression as a sum, with variables replaced by their ``values``; None if it is none. With
    variables of ``loops``, what does not depend on them counts as one variable, whatever it is."""
    from tvm import tirx

    if (number := constant(expression)) is not None:
        return {None: number}
    if loops is not None and not uses(expression, loops):
        return {expression: 1}
    if isinstance(expression, tirx.Var):
        if expression in values:
            return linear(values[expression], values, loops)
        return {expression: 1}
    if isinstance(expression, tirx.Cast):
        return linear(expression.value, values, loops)
    if not isinstance(expression, tirx.Add | tirx.Sub | tirx.Mul):
        return None
    left = linear(expression.a, values, loops)
    right = linear(expression.b, values, loops)
    if left is None or right is None:
        return None
    if isinstance(expression, tirx.Mul):
        for one, other in ((left, right), (right, left)):
            if set(one) == {None}:
                return {variable: c * one[None] for variable, c in other.items()}
        return None
    sign = 1 if isinstance(expression, tirx.Add) else -1
    total = dict(left)
    for variable, c in right.items():
        total[variable] = total.get(variable, 0) + sign * c
    return total


def position(loops: Sequence[tuple[Any, int]], kind: Any) -> Any:
    """Which iteration of nested loops this is, from the index and the extent of each."""
    from tvm import tirx

    total = tirx.const(0, kind)
    for index, extent in loops:
        total = total * extent + index.astype(kind)
    return total


def constant(expression: Any) -> int | None:
    from tvm import tirx

    return int(expression) if isinstance(expression, int | tirx.IntImm) else None


def uses(value: Any, loops: Container[Any]) -> bool:
    """Whether it depends on variables of ``loops``."""
    from tvm import tirx
    from tvm_ffi import structural_walk

    found: list[bool] = []
    structural_walk(value, (tirx.Var, lambda variable: found.append(variable in loops)))
    return any(found)
