"""Shapes that are known when a network is compiled."""

from __future__ import annotations

from typing import Any


def static_shape(value: Any) -> list[int] | None:
    """The extents of a Relax expression; None if one is not a number, or if it is no tensor."""
    from tvm import tirx

    shape = getattr(value.ty, "shape", None)
    if shape is None:
        return None
    extents = [*shape]
    if not all(isinstance(n, (int, tirx.IntImm)) for n in extents):
        return None
    return [int(n) for n in extents]


def has_static_shapes(call: Any) -> bool:
    """Whether the shapes of a call and of its first two operands are known."""
    return all(static_shape(each) is not None for each in (call, *call.args[:2]))
