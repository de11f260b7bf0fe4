"""Matrix products: the importer's return float32 for any operands. Einstein sums of two tensors are
products, too. It lacks bilinear forms, and distances between rows."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax

from tvmtune.networks import einsum
from tvmtune.networks.relax_operators import Operators, dtype, shape
from tvmtune.networks.torch.program import arguments


def _product(node: Any, importer: Any) -> Any:
    return _matmul(importer, importer.env[node.args[0]], importer.env[node.args[1]])


def _product_and_sum(node: Any, importer: Any) -> Any:
    """``beta * bias + alpha * left @ right``"""
    bias, left, right = (importer.env[argument] for argument in node.args[:3])
    emit = importer.block_builder.emit
    result = _matmul(importer, left, right)
    for name in ("alpha", "beta"):
        factor = node.kwargs.get(name, 1)
        if factor != 1:
            scaled = result if name == "alpha" else bias
            scaled = emit(relax.op.multiply(scaled, relax.const(factor, str(scaled.ty.dtype))))
            result, bias = (scaled, bias) if name == "alpha" else (result, scaled)
    return emit(relax.op.add(result, bias))


def _einsum(node: Any, importer: Any) -> Any:
    equation, operands = node.args[0], [importer.env[operand] for operand in node.args[1]]
    emit = importer.block_builder.emit
    result = einsum.matmul(emit, equation, *operands)
    return emit(relax.op.einsum(operands, equation)) if result is None else result


def _bilinear(node: Any, importer: Any) -> Any:
    """Rows (n, i) by weights (o, i, j) by rows (n, j), to (n, o)."""
    given, op = arguments(node), Operators(importer.block_builder)
    found = [given[name] for name in ("expand1", "expand2", "expand3", "sumdim")]
    if found != [[1, 3], [0], [1, 2], [2, 3]]:
        raise NotImplementedError(
            "products of three tensors are supported as torch.nn.Bilinear only"
        )
    left, weights, right = (importer.env[given[name]] for name in ("i1", "i2", "i3"))
    outputs, rows, columns = shape(weights)
    weights = op.reshape(op.permute_dims(weights, [1, 0, 2]), [rows, outputs * columns])
    forms = op.reshape(op.matmul(left, weights), [shape(left)[0], outputs, columns])
    return op.sum(op.multiply(forms, op.expand_dims(right, 1)), axis=2)


def _distances(node: Any, importer: Any) -> Any:
    """Of each of the rows (..., p, m) to each of (..., r, m), by a norm of any order."""
    op, order = Operators(importer.block_builder), float(node.args[2])
    first, second = (importer.env[argument] for argument in node.args[:2])
    differences = op.subtract(op.expand_dims(first, -2), op.expand_dims(second, -3))
    if order == 2:
        return op.sqrt(op.sum(op.square(differences), axis=-1))
    sizes = op.abs(differences)
    if order == math.inf:
        return op.max(sizes, axis=-1)
    if order == 0:
        return op.sum(op.astype(op.not_equal(sizes, 0.0), dtype(sizes)), axis=-1)
    if order == 1:
        return op.sum(sizes, axis=-1)
    return op.power(op.sum(op.power(sizes, order), axis=-1), 1 / order)


def _matmul(importer: Any, left: Any, right: Any) -> Any:
    return importer.block_builder.emit(relax.op.matmul(left, right))


CONVERTERS = {
    "_cdist_forward.default": _distances,
    "_trilinear.default": _bilinear,
    "addmm.default": _product_and_sum,
    "baddbmm.default": _product_and_sum,
    "bmm.default": _product,
    "einsum.default": _einsum,
    "matmul.default": _product,
    "mm.default": _product,
}
