"""Reductions: the importer lacks some, and adds booleans as booleans, which does not compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from tvmtune.networks.torch.converters.arithmetic import dtype_name, value


def _reduction(name: str) -> Any:
    def convert(node: Any, importer: Any) -> Any:
        axes = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", ())
        kept = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
        axes = [axes] if isinstance(axes, int) else list(axes or ()) or None
        x = value(node, importer, node.args[0], node.meta["val"].dtype)
        return importer.block_builder.emit(getattr(relax.op, name)(x, axes, kept))

    return convert


def _scan(operator: Callable[..., Any]) -> Any:
    def convert(node: Any, importer: Any) -> Any:
        dtype = node.meta["val"].dtype
        x = value(node, importer, node.args[0], dtype)
        return importer.block_builder.emit(operator(x, node.args[1], dtype_name(dtype)))

    return convert


CONVERTERS = {
    "amax.default": _reduction("max"),
    "amin.default": _reduction("min"),
    "cumprod.default": _scan(relax.op.cumprod),
    "cumsum.default": _scan(relax.op.cumsum),
    "prod.dim_int": _reduction("prod"),
    "sum.default": _reduction("sum"),
    "sum.dim_IntList": _reduction("sum"),
}
