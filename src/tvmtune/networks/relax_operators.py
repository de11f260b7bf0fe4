"""Relax operators as importers' converters write them, and the shape and dtype of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax


class Operators:
    """Relax operators bound to variables: ``op.add(x, y)``, ``op.nn.softmax(x)``.

    A number in place of a tensor gets the dtype of the first argument.
    """

    def __init__(self, builder: Any, namespace: Any = relax.op) -> None:
        self._builder, self._namespace = builder, namespace

    @property
    def image(self) -> Operators:
        return Operators(self._builder, self._namespace.image)

    @property
    def nn(self) -> Operators:
        return Operators(self._builder, self._namespace.nn)

    def astype(self, x: Any, kind: str) -> Any:
        """``x`` itself if it has that dtype: a cast to it would be a copy."""
        return x if dtype(x) == kind else self._builder.emit(relax.op.astype(x, kind))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operator = getattr(self._namespace, name)

        def call(first: Any, *others: Any, **attributes: Any) -> Any:
            tensors = [
                relax.const(other, dtype(first)) if isinstance(other, float) else other
                for other in others
            ]
            return self._builder.emit(operator(first, *tensors, **attributes))

        return call


def wrapped(op: Operators, ids: Any, extents: int | Sequence[int]) -> Any:
    """Indices in int64 that do not leave axes of these extents: they count from the end of an axis as
    from its start."""
    return op.floor_mod(op.astype(ids, "int64"), relax.const(np.array(extents), "int64"))


def shape(tensor: Any) -> list[int]:
    return [int(extent) for extent in tensor.ty.shape]


def dtype(tensor: Any) -> str:
    return str(tensor.ty.dtype)
