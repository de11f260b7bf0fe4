"""Einstein sums of two tensors as matrix products.

No schedule rule knows TVM's own kernel for such sums, so that it runs at a tenth of a product's speed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from tvm import relax

from tvmtune.types import product

Emit = Callable[[Any], Any]
"""Binds an expression to a variable."""
Axis = str | int
"""A subscript; the axes that an ellipsis stands for count from its end, from -1."""


def matmul(emit: Emit, equation: str, left: Any, right: Any) -> Any | None:
    """The value of an equation such as ``"bid,bjd->bij"``, by ``relax.matmul``.

    None where it is no product of matrices: if an operand or the result repeats a subscript, if the
    operands share none that is summed, or if they do not fit.
    """
    parsed = _parse(equation, [int(x.ty.ndim) for x in (left, right)])
    if parsed is None:
        return None
    a, b, result = parsed
    sizes: dict[Axis, int] = {}
    for axes, tensor in ((a, left), (b, right)):
        for axis, extent in zip(axes, map(int, tensor.ty.shape), strict=True):
            if min(extent, sizes.get(axis, 1)) != 1 and extent != sizes[axis]:
                return None
            sizes[axis] = max(sizes.get(axis, 1), extent)
    x, a = _once(emit, left, a, sizes)
    y, b = _once(emit, right, b, sizes)
    x, a = _summed(emit, x, a, {*b, *result})
    y, b = _summed(emit, y, b, {*a, *result})
    summed = [axis for axis in a if axis in b and axis not in result]
    if not summed or not {*result} <= {*a, *b}:
        return None
    batch = [axis for axis in result if axis in a and axis in b]
    rows = [axis for axis in result if axis not in b]
    columns = [axis for axis in result if axis not in a]
    z = emit(
        relax.op.matmul(
            _arranged(emit, x, a, sizes, batch, (rows, summed)),
            _arranged(emit, y, b, sizes, batch, (summed, columns)),
        )
    )
    order = [*batch, *rows, *columns]
    if len(rows) != 1 or len(columns) != 1:
        z = emit(relax.op.reshape(z, [sizes[axis] for axis in order]))
    return _permuted(emit, z, order, result)


def _parse(equation: str, ranks: Sequence[int]) -> list[list[Axis]] | None:
    """The axes of both operands and of the result."""
    operands, arrow, result = equation.replace(" ", "").partition("->")
    if not arrow:  # all subscripts that occur once, in alphabetical order
        letters = operands.replace("...", "").replace(",", "")
        result = "..." * ("..." in operands)
        result += "".join(sorted(c for c in letters if letters.count(c) == 1))
    texts = operands.split(",")
    if len(texts) != 2:
        return None
    found = [_axes(text, rank) for text, rank in zip(texts, ranks, strict=True)]
    most = max(sum(isinstance(axis, int) for axis in axes) for axes in found)
    found.append(_axes(result, len(result.replace("...", "")) + most))
    return None if any(len({*axes}) < len(axes) for axes in found) else found


def _axes(text: str, rank: int) -> list[Axis]:
    """Those of a tensor of this rank."""
    before, dots, after = text.partition("...")
    between = rank - len(before) - len(after) if dots else 0
    return [*before, *range(-between, 0), *after]


def _once(
    emit: Emit, tensor: Any, axes: Sequence[Axis], sizes: dict[Axis, int]
) -> tuple[Any, list[Axis]]:
    """The tensor without axes that are repeated along the other operand's."""
    repeated = [i for i, axis in enumerate(axes) if int(tensor.ty.shape[i]) < sizes[axis]]
    if repeated:
        tensor = emit(relax.op.squeeze(tensor, repeated))
    return tensor, [axis for i, axis in enumerate(axes) if i not in repeated]


def _summed(
    emit: Emit, tensor: Any, axes: Sequence[Axis], kept: Collection[Axis]
) -> tuple[Any, list[Axis]]:
    """The tensor, with sums over axes that neither the other operand nor the result has."""
    alone = [i for i, axis in enumerate(axes) if axis not in kept]
    if alone:
        tensor = emit(relax.op.sum(tensor, alone))
    return tensor, [axis for axis in axes if axis in kept]


def _arranged(
    emit: Emit,
    tensor: Any,
    axes: Sequence[Axis],
    sizes: dict[Axis, int],
    batch: Sequence[Axis],
    matrix: Sequence[Sequence[Axis]],
) -> Any:
    """A batch of matrices; each of their two axes is one of those in ``matrix``, together."""
    tensor = _permuted(emit, tensor, axes, [*batch, *matrix[0], *matrix[1]])
    if all(len(each) == 1 for each in matrix):
        return tensor
    shape = [sizes[axis] for axis in batch]
    return emit(
        relax.op.reshape(tensor, shape + [product([sizes[axis] for axis in m]) for m in matrix])
    )


def _permuted(emit: Emit, tensor: Any, axes: Sequence[Axis], order: Sequence[Axis]) -> Any:
    if [*axes] == [*order]:
        return tensor
    return emit(relax.op.permute_dims(tensor, [axes.index(axis) for axis in order]))
