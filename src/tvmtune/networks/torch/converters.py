"""Converters of PyTorch operators to Relax that the importer lacks or gets wrong.

Each is a function of the node and the importer, whose ``env`` holds the Relax value of each node.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tvm import relax

_VALUES_ONLY = (
    torch.ops.aten.max_pool2d_with_indices.default,
    torch.ops.aten.max_pool3d_with_indices.default,
)
"""Operators whose second result the importer fills with zeros."""


def _product(node: Any, importer: Any) -> Any:
    return _matmul(importer, importer.env[node.args[0]], importer.env[node.args[1]])


def _addmm(node: Any, importer: Any) -> Any:
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


def _matmul(importer: Any, left: Any, right: Any) -> Any:
    return importer.block_builder.emit(relax.op.matmul(left, right))


def _getitem(node: Any, importer: Any) -> Any:
    maker, index = node.args
    single = isinstance(importer.env[maker].ty, relax.TensorType)
    if index and (single or maker.target in _VALUES_ONLY):  # it would return the first, or zeros
        raise NotImplementedError("of its results only the first is supported")
    return importer._getitem(node)


def _group_norm(node: Any, importer: Any) -> Any:
    x, dtype = importer.env[node.args[0]], str(importer.env[node.args[0]].ty.dtype)
    channels, groups, epsilon = node.args[4], node.args[6], node.args[7]
    scale, shift = (
        relax.const(np.full(channels, default), dtype)
        if argument is None
        else importer.env[argument]
        for argument, default in zip(node.args[1:3], (1.0, 0.0), strict=True)
    )
    call = relax.op.nn.group_norm(
        x, scale, shift, groups, channel_axis=1, axes=list(range(2, x.ty.ndim)), epsilon=epsilon
    )
    return importer.block_builder.emit(call)


def _elu(node: Any, importer: Any) -> Any:
    """``scale * (x if x > 0 else alpha * (exp(input_scale * x) - 1))``, as in SELU."""
    values: dict[str, Any] = {"alpha": 1.0, "scale": 1.0, "input_scale": 1.0}
    values |= dict(zip(values, node.args[1:], strict=False)) | node.kwargs
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    alpha, scale, inner, one, zero = (
        relax.const(value, str(x.ty.dtype)) for value in (*values.values(), 1.0, 0.0)
    )
    below = emit(relax.op.exp(emit(relax.op.multiply(emit(relax.op.minimum(x, zero)), inner))))
    below = emit(relax.op.multiply(emit(relax.op.subtract(below, one)), alpha))
    return emit(relax.op.multiply(emit(relax.op.add(emit(relax.op.nn.relu(x)), below)), scale))


def _reduction(name: str) -> Any:
    def convert(node: Any, importer: Any) -> Any:
        axes = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", ())
        kept = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
        axes = [axes] if isinstance(axes, int) else list(axes) or None
        reduce = getattr(relax.op, name)
        return importer.block_builder.emit(reduce(importer.env[node.args[0]], axes, kept))

    return convert


CONVERTERS = {
    "addmm.default": _addmm,
    "amax.default": _reduction("max"),
    "amin.default": _reduction("min"),
    "bmm.default": _product,
    "elu.default": _elu,
    "getitem": _getitem,
    "mm.default": _product,
    "native_group_norm.default": _group_norm,
    "prod.dim_int": _reduction("prod"),
}
"""Converters that the importer lacks, and replacements for its own: its matrix products return
float32 for any operands, its ELU ignores two parameters, its group normalization requires a scale, and
its second results are made up."""
