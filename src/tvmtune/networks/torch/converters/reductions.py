"""Reductions: the importer lacks some, adds booleans as booleans, which does not compile, and refuses
those of truth values of numbers, products of integers and the norm of order 0, a count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tvm import relax

from tvmtune.networks.relax_operators import Operators
from tvmtune.networks.torch.converters.arithmetic import dtype_name, value, wide
from tvmtune.networks.torch.program import arguments
from tvmtune.types import product


def _reduction(name: str) -> Any:
    def convert(node: Any, importer: Any) -> Any:
        axes, kept = _axes(node)
        x = value(node, importer, node.args[0], node.meta["val"].dtype)
        return importer.block_builder.emit(getattr(relax.op, name)(x, axes, kept))

    return convert


def _axes(node: Any) -> tuple[list[int] | None, bool]:
    """The axes of a reduction, None for all, and whether they are kept."""
    given = arguments(node)
    axes = given.get("dim")
    axes = [axes] if isinstance(axes, int) else list(axes or ()) or None
    return axes, given.get("keepdim", False)


def _any(node: Any, importer: Any) -> Any:
    """That of uint8 is 0 or 1."""
    op, (axes, kept) = Operators(importer.block_builder), _axes(node)
    is_true = value(node, importer, node.args[0], torch.bool)
    truth = op.astype(is_true, "int8")  # bool has no maximum
    return op.astype(op.max(truth, axes, kept), dtype_name(node.meta["val"].dtype))


def _extremum(name: str) -> Any:
    """The extremes along an axis, and the places of the first ones. Unlike in PyTorch, NaN is none."""

    def convert(node: Any, importer: Any) -> Any:
        op, (axes, kept) = Operators(importer.block_builder), _axes(node)
        x = importer.env[node.args[0]]
        dtype = str(x.ty.dtype)
        x = op.astype(x, "int8") if dtype == "bool" else x  # bool has no maximum
        found = getattr(op, name)(x, axes, kept), getattr(op, f"arg{name}")(x, node.args[1], kept)
        return relax.Tuple([op.astype(found[0], dtype), op.astype(found[1], "int64")])

    return convert


def _variance_and_mean(node: Any, importer: Any) -> Any:
    """The sum of squared differences from the mean over ``count - correction``, in float32 at least."""
    op, (axes, kept) = Operators(importer.block_builder), _axes(node)
    variances, _ = node.meta["val"]
    dtype, extents = dtype_name(variances.dtype), node.args[0].meta["val"].shape
    correction = node.kwargs.get("correction")
    count = product(extents if axes is None else [extents[axis] for axis in axes])
    divisor = max(float(count - (1 if correction is None else correction)), 0.0)
    x = value(node, importer, node.args[0], wide(variances.dtype))
    mean = op.mean(x, axes, True)
    squares = op.sum(op.square(op.subtract(x, mean)), axes, kept)
    results = op.divide(squares, divisor), op.reshape(mean, list(variances.shape))
    return relax.Tuple([op.astype(each, dtype) for each in results])


def _vector_norm(node: Any, importer: Any) -> Any:
    if arguments(node)["ord"] != 0:
        return importer._norm(node)
    op, (axes, kept) = Operators(importer.block_builder), _axes(node)
    dtype = node.meta["val"].dtype
    nonzero = op.astype(value(node, importer, node.args[0], torch.bool), dtype_name(wide(dtype)))
    return op.astype(op.sum(nonzero, axes, kept), dtype_name(dtype))


def _scan(operator: Callable[..., Any]) -> Any:
    def convert(node: Any, importer: Any) -> Any:
        dtype = node.meta["val"].dtype
        x = value(node, importer, node.args[0], dtype)
        return importer.block_builder.emit(operator(x, node.args[1], dtype_name(dtype)))

    return convert


CONVERTERS = {
    "amax.default": _reduction("max"),
    "amin.default": _reduction("min"),
    "any.default": _any,
    "any.dim": _any,
    "any.dims": _any,
    "cumprod.default": _scan(relax.op.cumprod),
    "cumsum.default": _scan(relax.op.cumsum),
    "linalg_vector_norm.default": _vector_norm,
    "max.dim": _extremum("max"),
    "min.dim": _extremum("min"),
    "prod.default": _reduction("prod"),
    "prod.dim_int": _reduction("prod"),
    "sum.default": _reduction("sum"),
    "sum.dim_IntList": _reduction("sum"),
    "var_mean.correction": _variance_and_mean,
}
