"""Matrix products: the importer's return float32 for any operands. Einstein sums of two tensors are
products, too."""

from __future__ import annotations

from typing import Any

from tvm import relax

from tvmtune.networks import einsum


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


def _matmul(importer: Any, left: Any, right: Any) -> Any:
    return importer.block_builder.emit(relax.op.matmul(left, right))


CONVERTERS = {
    "addmm.default": _product_and_sum,
    "baddbmm.default": _product_and_sum,
    "bmm.default": _product,
    "einsum.default": _einsum,
    "matmul.default": _product,
    "mm.default": _product,
}
