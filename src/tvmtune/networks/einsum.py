"""Einstein sums of two tensors as matrix products.

No schedule rule knows TVM's own kernel for such sums, so that it runs at a tenth of a product's speed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from tvm import relax

from tvmtune.static_shapes import static_shape
from tvmtune.types import product

Emit = Callable[[Any], Any]
"""Binds an expression to a variable."""
Axis = str | int
"""A subscript; the axes that an ellipsis stands for count from its end, from -1."""


def matmul(emit: Emit, equation: str, *tensors: Any) -> Any | None:
    """The value of an equation such as ``"bid,bjd->bij"``, by ``relax.matmul``.

    None where it is no product of two matrices: if there are other than two operands, if one or the
    result repeats a subscript, if the operands share none that is summed, if they do not fit, or if an
    extent is 0 or not known.
    """
    if len(tensors) != 2:
        return None
    left, right = tensors
    shape, other = static_shape(left), static_shape(right)
    if shape is None or other is None or 0 in (*shape, *other):
        return None
    parsed = _parse(equation, [len(shape), len(other)])
    if parsed is None:
        return None
    a, b, result = parsed
    operands = ((a, shape), (b, other))
    sizes = _sizes(operands)
    if sizes is None:
        return None
    repeated = [
        {axis for axis, extent in zip(axes, extents, strict=True) if extent < sizes[axis]}
        for axes, extents in operands
    ]
    shared = ({*a} - repeated[0]) & ({*b} - repeated[1])
    if not shared - {*result} or not {*result} <= {*a, *b}:
        return None
    x, a = _without(emit, relax.op.squeeze, left, a, repeated[0])
    y, b = _without(emit, relax.op.squeeze, right, b, repeated[1])
    x, a = _without(emit, relax.op.sum, x, a, {*a} - {*b, *result})
    y, b = _without(emit, relax.op.sum, y, b, {*b} - {*a, *result})
    summed = [axis for axis in a if axis in b and axis not in result]
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
    if [len(axes) for axes in found] != [*ranks]:
        return None
    most = max(sum(isinstance(axis, int) for axis in axes) for axes in found)
    found.append(_axes(result, len(result.replace("...", "")) + most))
    return None if any(len({*axes}) < len(axes) for axes in found) else found


def _axes(text: str, rank: int) -> list[Axis]:
    """Those of a tensor of this rank."""
    before, dots, after = text.partition("...")
    between = rank - len(before) - len(after) if dots else 0
    return [*before, *range(-between, 0), *after]


def _sizes(operands: Iterable[tuple[Sequence[Axis], Sequence[int]]]) -> dict[Axis, int] | None:
    """The extent of each axis; None if the operands' differ and neither is 1."""
    sizes: dict[Axis, int] = {}
    for axes, shape in operands:
        for axis, extent in zip(axes, shape, strict=True):
            known = sizes.get(axis, extent)
            if extent != known and 1 not in (extent, known):
                return None
            sizes[axis] = known if extent == 1 else extent
    return sizes


def _without(
    emit: Emit, operator: Any, tensor: Any, axes: Sequence[Axis], removed: Collection[Axis]
) -> tuple[Any, list[Axis]]:
    """The tensor without some axes, by ``squeeze`` or ``sum``."""
    places = [i for i, axis in enumerate(axes) if axis in removed]
    if places:
        tensor = emit(operator(tensor, places))
    return tensor, [axis for axis in axes if axis not in removed]


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
